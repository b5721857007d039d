"""Horovod's interface, whole: what its users import is here under the same path (docs/compatibility.md).

import legato.horovod.torch as hvd  # was: import horovod.torch as hvd
"""
