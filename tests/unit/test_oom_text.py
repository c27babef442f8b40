"""The numbers of an out-of-memory message, in the forms of torch 1.0 to 2.13."""

import pytest

from tunewarden.domain.oom_text import OomNumbers, read_oom

GIB, MIB = 1 << 30, 1 << 20
NEW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.50 GiB is "
    "free. Process 91 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has 21.50 GiB in use. "
    "Of the allocated memory {allocated} GiB is allocated by PyTorch{pools}, and {unused} GiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF"
)


@pytest.mark.parametrize(
    ("text", "numbers", "fragmented"),
    [
        (
            NEW.format(allocated="14.50", unused="6.50", pools=""),
            OomNumbers(tried=2 * GIB, total=24 * GIB, free=3 * GIB // 2, allocated=29 * GIB // 2, unused=13 * GIB // 2),
            True,
        ),
        (
            NEW.format(allocated="20.50", unused="0.50", pools=", with 30.00 MiB allocated in private pools"),
            OomNumbers(tried=2 * GIB, total=24 * GIB, free=3 * GIB // 2, allocated=41 * GIB // 2, unused=GIB // 2),
            False,
        ),
        (
            "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already "
            "allocated; 64.00 MiB free; 7.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated",
            OomNumbers(tried=512 * MIB, total=8 * GIB, free=64 * MIB, allocated=5 * GIB, unused=2 * GIB),
            True,
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 12.00 GiB total capacty; 11.00 GiB already "
            "allocated; 4.00 MiB free; 11.25 GiB reserved in total by PyTorch)",
            OomNumbers(tried=20 * MIB, total=12 * GIB, free=4 * MIB, allocated=11 * GIB, unused=GIB // 4),
            False,
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already "
            "allocated; 3.00 MiB free; 1.00 GiB cached)",
            OomNumbers(tried=20 * MIB, total=8 * GIB, free=3 * MIB, allocated=6 * GIB, unused=GIB),
            True,
        ),
        ("CUDA error: out of memory", OomNumbers(), None),
        ("Tried to allocate more than 1EB memory.", OomNumbers(), None),
    ],
)
def test_the_numbers(text: str, numbers: OomNumbers, fragmented: bool | None) -> None:
    """What is reserved and holds nothing would have been enough: that is fragmentation, and no need of more."""
    found = read_oom(text)

    assert (found, found.fragmented) == (numbers, fragmented)
