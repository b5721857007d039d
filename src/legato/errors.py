"""Every error legato raises on purpose. A user can catch `LegatoError`; anything else is a defect of ours."""


class LegatoError(Exception):
    """Base of all errors that legato raises on purpose."""


class InputError(LegatoError, ValueError):
    """A value given by the user is wrong; the message says which, where, and what is accepted."""


class PlanError(LegatoError, ValueError):
    """A plan does not fit its tensors, or would start at a step that has already begun."""
