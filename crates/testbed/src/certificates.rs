//! Certificates for one test: an authority of its own, and a server for `localhost` and no other name.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::tools::{find, run};

const FOLDERS: &[&str] = &["/usr/bin"];
const PACKAGE: &str = "openssl";
const DAYS: &str = "2";

/// Files that go with this value.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// New ones, which nobody trusts who is not told to.
    pub fn make() -> Self {
        let folder = tempfile::Builder::new().prefix("retrysafe-tls-").tempdir().expect("a temporary folder");
        let made = Self { folder };
        let openssl = find("openssl", FOLDERS, PACKAGE).join("openssl");
        let request = |name: &str, common: &str| {
            let mut request = Command::new(&openssl);
            request.args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ]);
            request.args(["-days", DAYS, "-subj", &format!("/CN={common}")]);
            request.arg("-keyout").arg(made.file(&format!("{name}.key")));
            request.arg("-out").arg(made.file(&format!("{name}.crt")));
            request
        };
        let mut authority = request("authority", "retrysafe test authority");
        authority.args([
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign",
        ]);
        run(authority);
        let mut server = request("server", "localhost");
        server.args([
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ]);
        server.arg("-CA").arg(made.authority()).arg("-CAkey").arg(made.file("authority.key"));
        run(server);
        made
    }

    /// The authority's certificate, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.file("authority.crt")
    }

    /// The server's certificate, in PEM.
    pub fn server(&self) -> PathBuf {
        self.file("server.crt")
    }

    /// Its key, in PEM.
    pub fn key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// Where all of them are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
