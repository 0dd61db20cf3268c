"""Keys of model signatures: ECDSA on P-256, in PEM."""

from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from core.errors import Disposition, MillraceError

_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())


class InvalidKeyError(MillraceError):
    """The key is not an unencrypted PEM key on the curve P-256."""

    code = "key_refused"
    disposition = Disposition.REJECT


class SigningKey:
    """A private key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        """Use a key on P-256."""
        self._key = key
        self.public = PublicKey(key.public_key())

    @classmethod
    def generate(cls) -> "SigningKey":
        """Return a new key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> "SigningKey":
        """Read a key. Raises InvalidKeyError."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # may quote nothing of the key
            raise InvalidKeyError from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.curve):
            raise InvalidKeyError
        return cls(key)

    def pem(self) -> bytes:
        """Return the key in PKCS 8."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, in DER."""
        return self._key.sign(message, _ALGORITHM)


class PublicKey:
    """A public key and its id."""

    def __init__(self, key: ec.EllipticCurvePublicKey) -> None:
        """Use a key on P-256."""
        self._key = key
        self.pem = key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.key_id = sha256(self.pem).hexdigest()
        """SHA-256 of the PEM text: the hint by which OMS bundles name a key."""

    @classmethod
    def from_pem(cls, pem: bytes) -> "PublicKey":
        """Read a key. Raises InvalidKeyError."""
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidKeyError from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key.curve):
            raise InvalidKeyError
        return cls(key)

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is one of this key and message."""
        try:
            self._key.verify(signature, message, _ALGORITHM)
        except InvalidSignature:
            return False
        return True


def _is_p256(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP256R1)
