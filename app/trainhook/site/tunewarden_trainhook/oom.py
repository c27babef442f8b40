"""Is an exception an out-of-memory error? The texts are those of torch, cuBLAS and cuDNN, and accelerate's own list."""

_TEXTS = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_not_supported",
    "defaultcpuallocator: can't allocate memory",
)


def is_oom(error):
    """torch.OutOfMemoryError (older: torch.cuda.OutOfMemoryError), MemoryError, or a RuntimeError that says so."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)
