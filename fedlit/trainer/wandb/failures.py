"""The errors that W&B raises: the only file with its private names, which are not in its public tree of errors."""


def wandb_failures() -> tuple[type[Exception], ...]:
    """Errors of a process that died, a full disk, and a server that refuses or does not answer."""
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return OSError, wandb.Error, WandbApiFailedError, HandleAbandonedError, MailboxClosedError
