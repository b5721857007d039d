"""Frames on a protected wire, as native/engine/net/records.hpp describes them, made and read in Python."""

import ctypes
import socket
import weakref
from dataclasses import replace

from tests.engine.wire import HEADER_BYTES, Frame, Header, Peer, decode, encode

ENGINES_KEY, PEERS_KEY = b"e" * 32, b"p" * 32
"""Of what an engine sends to a peer of the test's, and of what that sends."""
TAG_BYTES = 16

_GET_TAG, _SET_TAG = 0x10, 0x11


class Records:
    """AES-256-GCM, one direction, record after record."""

    def __init__(self, key: bytes, wire: str, *, sending: bool) -> None:
        self._library = ctypes.CDLL("libcrypto.so.3")
        self._library.EVP_CIPHER_CTX_new.restype = self._library.EVP_aes_256_gcm.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.EVP_CIPHER_CTX_new())
        weakref.finalize(self, self._library.EVP_CIPHER_CTX_free, self._context)
        cipher = ctypes.c_void_p(self._library.EVP_aes_256_gcm())
        assert self._library.EVP_CipherInit_ex(self._context, cipher, None, key, None, int(sending)) == 1
        self._encrypts = wire == "encrypted"
        self._number = 0

    def seal(self, data: bytes) -> bytes:
        """With its tag."""
        text, last = self._pass_over(data)
        assert self._library.EVP_CipherFinal_ex(self._context, last, ctypes.byref(ctypes.c_int())) == 1
        self._library.EVP_CIPHER_CTX_ctrl(self._context, _GET_TAG, TAG_BYTES, last)
        return text + last.raw

    def open(self, sealed: bytes) -> bytes:
        text, last = self._pass_over(sealed[:-TAG_BYTES])
        self._library.EVP_CIPHER_CTX_ctrl(self._context, _SET_TAG, TAG_BYTES, sealed[-TAG_BYTES:])
        is_genuine = self._library.EVP_CipherFinal_ex(self._context, last, ctypes.byref(ctypes.c_int())) == 1
        assert is_genuine, f"record {self._number - 1} is not the one that was sealed"
        return text

    def _pass_over(self, data: bytes) -> "tuple[bytes, ctypes.Array[ctypes.c_char]]":
        nonce = self._number.to_bytes(12, "little")
        self._number += 1
        output = ctypes.create_string_buffer(len(data)) if self._encrypts else None
        num_done = ctypes.c_int()
        assert self._library.EVP_CipherInit_ex(self._context, None, None, None, nonce, -1) == 1
        assert self._library.EVP_CipherUpdate(self._context, output, ctypes.byref(num_done), data, len(data)) == 1
        return data if output is None else output.raw, ctypes.create_string_buffer(TAG_BYTES)


class SealedPeer(Peer):
    """The same on a wire that is authenticated or encrypted."""

    def __init__(self, sock: socket.socket, member: int, wire: str) -> None:
        super().__init__(sock, member)
        self._sealing = Records(PEERS_KEY, wire, sending=True)
        self._opening = Records(ENGINES_KEY, wire, sending=False)

    def seal(self, header: Header, payload: bytes = b"") -> bytes:
        """The next frame, as it travels."""
        bare = encode(replace(header, sender=self.member), payload, bare=True)
        head, body = bare[:HEADER_BYTES], bare[HEADER_BYTES:]
        return self._sealing.seal(head) + (self._sealing.seal(body) if body else b"")

    def send(self, header: Header, payload: bytes = b"", *, checksum_error: int = 0) -> None:
        assert not checksum_error, "there is none"
        self.sock.sendall(self.seal(header, payload))

    def _receive_any(self) -> Frame:
        header = decode(self._opening.open(self._read(HEADER_BYTES + TAG_BYTES)))
        if not header.payload_bytes:
            return Frame(header, b"")
        return Frame(header, self._opening.open(self._read(header.payload_bytes + TAG_BYTES)))
