"""What compiled JAX programs call: they reach the engine without the interpreter. C++ in native/jax."""

from collections.abc import Sequence

def handlers() -> dict[str, object]:
    """XLA's handlers by name, as `jax.ffi.register_ffi_target` takes them."""

def enroll(api: int, collector: int, names: Sequence[str]) -> int:
    """The number by which programs name an exchange: its functions, its address, and what its tensors are called."""

def dismiss(exchange: int) -> None:
    """Programs that name this exchange fail from now on; what is on its way still arrives."""
