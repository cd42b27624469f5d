"""Reads golden.safetensors with the reference implementation and checks every value in it.

    pip install safetensors numpy
    python read_golden.py
"""

import pathlib
import struct

from safetensors import deserialize, safe_open

path = pathlib.Path(__file__).with_name("golden.safetensors")
tensors = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(path.read_bytes())}
want = {
    "a": ("F32", [], struct.pack("<f", 1.5)),
    "h.0.w": ("F32", [2, 3], struct.pack("<6f", 0, 1, 2, 3, 4, 5)),
    "half": ("BF16", [2], bytes([0x80, 0x3F, 0x00, 0xC0])),
    "mask": ("BOOL", [3], bytes([1, 0, 1])),
    "steps": ("I64", [1], struct.pack("<q", 250)),
}
assert tensors == want, tensors

with safe_open(path, "numpy") as f:
    assert f.metadata() == {"format": "pt", "made by": "starling"}, f.metadata()
    assert f.get_tensor("h.0.w").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert f.get_tensor("a").item() == 1.5 and f.get_tensor("steps").tolist() == [250]
print("golden.safetensors holds what it should")
