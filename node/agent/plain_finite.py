"""Find NaN and infinity without numpy: what `extraction/spool/finite.py` says, on bytes."""

# Which bits of which byte of a little-endian value are set in NaN and infinity only, byte 0 being the lowest.
_MASKS = {"BF16": {1: 0x7F, 0: 0x80}, "F16": {1: 0x7C}, "F32": {3: 0x7F, 2: 0x80}}
_WIDTH = {"BF16": 2, "F16": 2, "F32": 4}


def is_finite(data: memoryview, dtype: str) -> bool:
    """Tell whether all values of little-endian `data` are finite; `dtype` is safetensors' name.

    Raises:
        KeyError: `dtype` is no floating dtype that the tap writes.
    """
    width = _WIDTH[dtype]
    whole = bytes(data)
    suspects = None
    for position, mask in _MASKS[dtype].items():
        table = bytes(1 if byte & mask == mask else 0 for byte in range(256))
        # One byte a value, 1 where this byte is that of a NaN; as whole numbers they are joined at once.
        hits = int.from_bytes(whole[position::width].translate(table), "little")
        suspects = hits if suspects is None else suspects & hits
    return not suspects
