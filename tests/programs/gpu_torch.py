"""What PyTorch does on a GPU elsewhere without kernels of its own: copies, products of cuBLAS and cuBLASLt, streams, events.

The wheels of PyTorch hold machine code only, so the device in software cannot run PyTorch's kernels; a GPU can. With `kernels` as argument they are
launched as well, and results are not looked at.
"""

import sys

import torch


def check_products():
    """Bytes go over and back, and products are right."""
    torch.manual_seed(1)
    left, right, bias = torch.randn(33, 65), torch.randn(65, 17), torch.randn(17)
    far = left.cuda()
    assert torch.equal(far.cpu(), left)
    assert torch.allclose((far @ right.cuda()).cpu(), left @ right, atol=1e-5)
    halves = (left.half().cuda() @ right.half().cuda()).cpu()
    assert torch.allclose(halves.float(), left @ right, atol=0.1)
    layer = torch.nn.functional.linear(far, right.t().contiguous().cuda(), bias.cuda())
    assert torch.allclose(layer.cpu(), left @ right + bias, atol=1e-5)
    batch = torch.randn(5, 8, 9), torch.randn(5, 9, 7)
    assert torch.allclose(torch.bmm(batch[0].cuda(), batch[1].cuda()).cpu(), torch.bmm(*batch), atol=1e-5)


def check_streams():
    """Copies in a stream of one's own, from pinned memory, and events."""
    numbers = torch.arange(100_000, dtype=torch.float32).pin_memory()
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        far = numbers.to("cuda", non_blocking=True)
        back = torch.empty(100_000).pin_memory()
        back.copy_(far, non_blocking=True)
        end.record()
    stream.synchronize()
    assert torch.equal(back, numbers)
    assert end.query() and start.elapsed_time(end) >= 0


def launch_kernels():
    """A step of training: nothing fails, whatever comes out."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(torch.zeros(2, 5, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()


assert torch.cuda.is_available() and torch.cuda.device_count() == 1
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
if "kernels" in sys.argv:
    launch_kernels()
else:
    check_products()
    check_streams()
print(torch.cuda.get_device_name(0))
