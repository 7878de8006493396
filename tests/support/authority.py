"""A certificate authority for the tests of TLS."""

import subprocess

import rollway


class Authority:
    """A certificate authority of this test run, made with openssl(1)."""

    def __init__(self, folder, name="authority"):
        self.folder, self.pem = folder, folder / "ca.pem"
        self._openssl(f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}", "ca")

    def _openssl(self, command, name):
        files = ["-keyout", str(self.folder / f"{name}.key"), "-out", str(self.folder / f"{name}.pem")]
        subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)

    def issue(self, *names):
        """A `Tls` whose certificate is good for these names."""
        name = names[0].partition(":")[2]
        made = f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name}"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(names)}\nbasicConstraints=CA:FALSE\n")
        self._openssl(made, f"{name}.request")
        key, certificate = self.folder / f"{name}.request.key", self.folder / f"{name}.pem"
        signing = f"x509 -req -days 2 -in {name}.request.pem -CA ca.pem -CAkey ca.key -CAcreateserial"
        subprocess.run(
            ["openssl", *signing.split(), "-extfile", extensions.name, "-out", certificate.name],
            check=True,
            capture_output=True,
            cwd=self.folder,
        )
        return rollway.Tls(certificate, key)

    def self_signed(self, address):
        """A `Tls` whose certificate vouches for itself."""
        extensions = f"-addext subjectAltName={address} -addext basicConstraints=critical,CA:FALSE"
        made = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=self {extensions}"
        self._openssl(made, "self")
        return rollway.Tls(self.folder / "self.pem", self.folder / "self.key")
