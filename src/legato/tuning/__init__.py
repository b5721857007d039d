"""Better plans: candidates, tuners that ask and are told, a digital twin, and the guard that keeps steps from harm."""
