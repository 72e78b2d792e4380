"""Makes keys for a try: an own certificate authority, the server's certificate, and a key pair for each node."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from fedlit.errors import ConfigError, require
from fedlit.flower.keys import Keys

_VALID = timedelta(days=365)


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> Keys:
    """Make all keys of a federation.

    Args:
        folder: must not hold keys yet.
        hosts: names and addresses by which nodes reach the server.
        nodes: their names.
    """
    require(not (folder / "ca.key").exists(), f"{folder} holds keys already. Give another --out, or remove it.")
    (folder / "nodes").mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    authority, authority_key = certificate("fedlit try: authority", None, None, [])
    server, server_key = certificate("fedlit try: server", authority, authority_key, hosts)
    for name, made, key in (("ca", authority, authority_key), ("server", server, server_key)):
        (folder / f"{name}.crt").write_bytes(made.public_bytes(Encoding.PEM))
        write_private(folder / f"{name}.key", key, PrivateFormat.TraditionalOpenSSL)
    for node in nodes:
        add_node(folder, node)
    return Keys(folder)


def add_node(folder: Path, node: str) -> None:
    """A key pair for one node."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / "nodes" / node, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "nodes" / f"{node}.pub").write_bytes(public + b"\n")


def write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    """Write a private key that only this user can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already. Give another --out, or remove it.") from error


def certificate(
    subject: str,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
    hosts: Sequence[str],
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for these hosts, signed by the issuer; an authority of its own if there is none."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), False)
    return builder.sign(key if issuer_key is None else issuer_key, hashes.SHA256()), key


def general_name(host: str) -> x509.GeneralName:
    """An address or a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
