"""How members find, prove themselves to and agree with each other; no gradient passes here."""
