"""Keys and certificates of one cluster: an authority of its own, everybody else signed by it.

Also between the API server and etcd: whoever can write to etcd is the cluster's administrator, and the node agent
runs what the cluster says as the user who started it. Loopback is shared with every other user of the machine.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = dt.timedelta(days=365)
_BACKDATED: Final = dt.timedelta(hours=1)
_API_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class CertificateIdentity:
    """A certificate to issue.

    Attributes:
        name: file name of its `.crt` and `.key`.
        user: common name; for a client, the user name in the cluster.
        group: organisation; for a client, its group in the cluster. Empty: none.
        dns: further host names that a server answers to; 127.0.0.1 is always among them.
    """

    name: str
    user: str
    group: str = ""
    dns: tuple[str, ...] = ()


IDENTITIES: Final = (
    CertificateIdentity("etcd", "etcd", dns=("localhost",)),
    CertificateIdentity("apiserver", "kube-apiserver", dns=_API_NAMES),
    CertificateIdentity("apiserver-etcd-client", "kube-apiserver-etcd-client"),
    CertificateIdentity("apiserver-kubelet-client", "kube-apiserver-kubelet-client"),
    CertificateIdentity("front-proxy-client", "front-proxy-client"),
    CertificateIdentity("node", "system:node:localcluster", "system:nodes", dns=("localhost",)),
    CertificateIdentity("admin", "admin", "system:masters"),
    # Not `admin`: the audit log must tell the agent's writes from a person's.
    CertificateIdentity("node-agent", "localcluster:node-agent", "system:masters"),
    CertificateIdentity("controller-manager", "system:kube-controller-manager"),
    CertificateIdentity("scheduler", "system:kube-scheduler"),
    CertificateIdentity("prometheus", "localcluster:prometheus"),
    CertificateIdentity("lws-controller", "localcluster:lws-controller"),
    CertificateIdentity("rollouts-controller", "localcluster:rollouts-controller"),
    CertificateIdentity("llmisvc-controller", "localcluster:llmisvc-controller"),
)


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "breakeven-localcluster")])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._store("ca", self._key, certificate)

    def issue(self, identity: CertificateIdentity) -> None:
        """Writes `NAME.crt` and `NAME.key`, good for both ends of a TLS connection."""
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, identity.user)]
        if identity.group:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group))
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in identity.dns]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            self._builder(x509.Name(attributes), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._store(identity.name, key, certificate)

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        )

    def _store(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        write_private(self._folder / f"{name}.key", _pem(key))
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write(folder: Path) -> None:
    """Fills the folder: `ca.crt`, a pair per identity, and the pair that signs ServiceAccounts' tokens."""
    authority = Authority(folder)
    for identity in IDENTITIES:
        authority.issue(identity)
    tokens = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / "service-accounts.key", _pem(tokens))
    public = tokens.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "service-accounts.pub").write_bytes(public)


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, from its first byte on."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
