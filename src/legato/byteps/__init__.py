"""BytePS's interface: `import legato.byteps.torch as bps` (docs/compatibility.md)."""
