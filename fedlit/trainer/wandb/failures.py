"""What W&B raises when it fails: the only file with its private names, which stand beside its tree of errors."""


def wandb_failures() -> tuple[type[Exception], ...]:
    """Its process died, its disk is full, its server does not answer or refuses."""
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return OSError, wandb.Error, WandbApiFailedError, HandleAbandonedError, MailboxClosedError
