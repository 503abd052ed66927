# SPDX-License-Identifier: Apache-2.0
"""A WebAssembly module from its text form: what story/kernel.wat is written in, which is flat code in functions without results."""

import re
import struct
from collections.abc import Iterator, Sequence

Tree = list["str | Tree"]

TYPES = {"i32": 0x7F, "v128": 0x7B}
BYTES = {
    "end": 0x0B, "f32.load": 0x2A, "f32.store": 0x38, "i32.ne": 0x47, "i32.add": 0x6A, "i32.mul": 0x6C, "f32.add": 0x92,
    "f32.mul": 0x94,
}  # fmt: skip
"""Of instructions in one byte."""
VECTORS = {
    "v128.load": 0, "v128.store": 11, "f32x4.splat": 19, "i16x8.extend_low_i8x16_s": 135, "i16x8.extend_high_i8x16_s": 136,
    "i32x4.extend_low_i16x8_s": 167, "i32x4.extend_high_i16x8_s": 168, "f32x4.add": 228, "f32x4.mul": 230,
    "f32x4.convert_i32x4_s": 250,
}  # fmt: skip
"""Of those after the byte 0xFD."""
OF_LOCALS = {"local.get": 0x20, "local.set": 0x21, "local.tee": 0x22}


def assembled(text: str) -> bytes:
    """The binary of a module that imports one memory and exports its functions.

    Raises:
        ValueError: something that is not read here.
    """
    (module,) = _trees(iter(re.findall(r"[()]|[^\s()]+", re.sub(r";;.*", "", text))))
    memory, *functions = [part for part in module[1:] if isinstance(part, list)]
    if memory[0] != "import" or any(function[0] != "func" for function in functions):
        raise ValueError("a module is read as an import of a memory and functions")
    types, exports, codes = [], [], []
    for number, (_, export, *parts) in enumerate(functions):
        declared = [part for part in parts if isinstance(part, list)]
        code = [part for part in parts if isinstance(part, str)]
        parameters, variables = ([TYPES[str(d[2])] for d in declared if d[0] == kind] for kind in ("param", "local"))
        types.append(b"\x60" + _vector([bytes([each]) for each in parameters]) + b"\x00")
        exports.append(_name(str(export[1])) + b"\x00" + _unsigned(number))
        names = {str(each[1]): place for place, each in enumerate(declared)}
        body = _vector([b"\x01" + bytes([each]) for each in variables]) + b"".join(_code(code, names)) + b"\x0b"
        codes.append(_unsigned(len(body)) + body)
    where = b"".join(_name(str(each)) for each in memory[1:3]) + b"\x02\x00" + _unsigned(int(str(memory[3][1])))
    of_functions = [_unsigned(number) for number in range(len(functions))]
    sections = {1: types, 2: [where], 3: of_functions, 7: exports, 10: codes}
    filled = (bytes([kind]) + _unsigned(len(_vector(parts))) + _vector(parts) for kind, parts in sections.items())
    return b"\x00asm\x01\x00\x00\x00" + b"".join(filled)


def _trees(words: Iterator[str]) -> Tree:
    found: Tree = []
    for word in words:
        if word == ")":
            break
        found.append(_trees(words) if word == "(" else word)
    return found


def _code(words: Sequence[str], names: dict[str, int]) -> Iterator[bytes]:
    """words: instructions with what follows them. names: of parameters and locals, by their numbers."""
    loops: list[str] = []
    rest = iter(words)
    following = next(rest, None)
    while following is not None:
        word, following = following, next(rest, None)
        if word in OF_LOCALS:
            yield bytes([OF_LOCALS[word]]) + _unsigned(names[str(following)])
        elif word == "loop":
            loops.append(str(following))
            yield b"\x03\x40"
        elif word == "br_if":
            yield b"\x0d" + _unsigned(len(loops) - 1 - loops.index(str(following)))
        elif word == "i32.const":
            yield b"\x41" + _signed(int(str(following)))
        elif word == "v128.const":
            yield b"\xfd\x0c" + struct.pack("<QQ", int(str(following)), 0)
        elif word == "f32x4.extract_lane":
            yield b"\xfd\x1f" + bytes([int(str(following))])
        elif word in BYTES or word in VECTORS:
            offset = re.fullmatch(r"offset=(\d+)", following or "")
            place = b"\x00" + _unsigned(int(offset[1]) if offset else 0) if re.search(r"load|store", word) else b""
            yield (bytes([BYTES[word]]) if word in BYTES else b"\xfd" + _unsigned(VECTORS[word])) + place
            loops = loops[:-1] if word == "end" else loops
            following = next(rest, None) if offset else following
            continue
        else:
            raise ValueError(f"{word}: is not read here")
        following = next(rest, None)


def _vector(parts: Sequence[bytes]) -> bytes:
    return _unsigned(len(parts)) + b"".join(parts)


def _name(quoted: str) -> bytes:
    text = quoted.strip('"').encode()
    return _unsigned(len(text)) + text


def _unsigned(value: int) -> bytes:
    """LEB128."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _unsigned(value >> 7)


def _signed(value: int) -> bytes:
    return bytes([value & 127]) if -64 <= value < 64 else bytes([value & 127 | 128]) + _signed(value >> 7)
