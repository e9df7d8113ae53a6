//! What a proof needs beyond the Rust toolchain, fetched when it is missing, and said aloud.
//!
//! Everything goes below `target/tools` where that is possible; only what must be part of the system (an
//! interpreter) is installed with the system's package manager.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The folder of the workspace manifest.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// `target/NAME`, made when missing.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn target(name: &str) -> Result<PathBuf> {
    let folder = root().join("target").join(name);
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// The program `name`, for comparison with others' packages, built in a project of its own below `target/bench-peers`: what
/// it needs is not in our lock file. `files` are paths in the project and their texts.
///
/// # Errors
/// A file cannot be written, or the project does not build.
pub(crate) fn peer(project: &str, name: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
    let folder = target(&format!("bench-peers/{project}"))?;
    std::fs::create_dir_all(folder.join("src"))?;
    for (path, text) in files {
        std::fs::write(folder.join(path), text)?;
    }
    let binary = folder.join("target/release").join(name);
    if !binary.exists() {
        eprintln!("building {project} below target/bench-peers (a few minutes, once)");
    }
    let built = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--target-dir", "target"])
        .current_dir(&folder)
        // It is not a member of our workspace and takes none of its settings.
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .context("cargo")?;
    if !built.success() {
        bail!("{project} does not build; see {}", folder.display());
    }
    Ok(binary)
}

/// A fresh folder for one proof's files, on the real disk, gone when the value is dropped.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn scratch() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("run-").tempdir_in(target("proofs")?).context("make a scratch folder")
}

/// A program of the system by its name, or installed from its Debian package.
///
/// # Errors
/// It is missing and cannot be installed; the text says what to install.
pub(crate) fn system(program: &str, package: &str) -> Result<PathBuf> {
    if let Some(found) = on_path(program) {
        return Ok(found);
    }
    println!("{program} is missing: installing the Debian package {package}");
    apt(&["install", "--yes", "--no-install-recommends", package])
        .with_context(|| format!("{program} is needed; install {package} and run again"))?;
    on_path(program).with_context(|| format!("{package} is installed and brought no {program}"))
}

/// nginx, without touching the system's services: the package is unpacked below `target/tools`. (Installed the
/// usual way it would start a server on port 80.)
///
/// # Errors
/// It can neither be found, unpacked nor installed.
pub(crate) fn nginx() -> Result<PathBuf> {
    if let Some(found) = on_path("nginx") {
        return Ok(found);
    }
    let folder = target("tools/nginx")?;
    let unpacked = folder.join("usr/sbin/nginx");
    if !unpacked.exists() {
        println!("nginx is missing: unpacking the Debian package nginx-light below target/tools/nginx");
        apt_download("nginx-light", &folder)?;
    }
    if runs(Command::new(&unpacked).arg("-v")) {
        return Ok(unpacked);
    }
    // A library of it is missing; then the package manager has to find the rest.
    system("nginx", "nginx-light")
}

fn apt_download(package: &str, folder: &Path) -> Result<()> {
    refresh_package_lists()?;
    let downloaded = Command::new("apt-get").args(["download", package]).current_dir(folder).status();
    if !downloaded.is_ok_and(|status| status.success()) {
        bail!("apt-get download {package} failed");
    }
    for entry in std::fs::read_dir(folder)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            let status = Command::new("dpkg").arg("-x").arg(entry.path()).arg(folder).status()?;
            if !status.success() {
                bail!("dpkg could not unpack {}", entry.path().display());
            }
        }
    }
    Ok(())
}

fn apt(arguments: &[&str]) -> Result<()> {
    refresh_package_lists()?;
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    if !command.status().context("apt-get is not here: not a Debian system?")?.success() {
        bail!("apt-get {} failed (it needs root)", arguments.join(" "));
    }
    Ok(())
}

/// Once per run: a new machine has no lists at all.
fn refresh_package_lists() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let done = *DONE.get_or_init(|| runs(Command::new("apt-get").arg("update")));
    if !done {
        bail!("apt-get update failed (it needs root and a network)");
    }
    Ok(())
}

/// Whether a command runs and succeeds; its output is not shown.
pub(crate) fn runs(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Servers live in sbin, which a plain user's PATH lacks.
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A Python with the packages of `requirements` (a pip file's text), in an environment of its own below
/// `target/tools`: `name` is its folder.
///
/// # Errors
/// Python is missing and cannot be installed, or the packages cannot be had.
pub(crate) fn python(name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = target(&format!("tools/{name}"))?;
    let (python, stamp) = (folder.join("bin/python"), folder.join("installed.txt"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        return Ok(python);
    }
    println!("setting up Python with {} below target/tools/{name}", requirements.trim());
    let system_python = system("python3", "python3")?;
    let venv = |python: &Path| runs(Command::new(python).args(["-m", "venv"]).arg(&folder));
    if !venv(&system_python) {
        // Debian ships the module apart.
        apt(&["install", "--yes", "--no-install-recommends", "python3-venv"])?;
        if !venv(&system_python) {
            bail!("python3 -m venv fails; install python3-venv and run again");
        }
    }
    let list = folder.join("requirements.txt");
    std::fs::write(&list, requirements)?;
    let installed = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&list)
        .status()
        .context("pip")?;
    if !installed.success() {
        bail!("pip could not install {}", requirements.trim());
    }
    std::fs::write(&stamp, requirements)?;
    Ok(python)
}

/// Node, and the folder `name` below `target/tools` with the packages of `package_json` installed.
///
/// # Errors
/// Node or npm is missing and cannot be installed, or the packages cannot be had.
pub(crate) fn node(name: &str, package_json: &str) -> Result<(PathBuf, PathBuf)> {
    let node = system("node", "nodejs")?;
    let folder = target(&format!("tools/{name}"))?;
    let (manifest, stamp) = (folder.join("package.json"), folder.join("installed.txt"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == package_json) {
        return Ok((node, folder));
    }
    println!("setting up Node packages below target/tools/{name}");
    let npm = system("npm", "npm")?;
    std::fs::write(manifest, package_json)?;
    let arguments = ["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"];
    let installed = Command::new(npm).args(arguments).current_dir(&folder).status().context("npm")?;
    if !installed.success() {
        bail!("npm could not install the packages of {}", folder.display());
    }
    std::fs::write(stamp, package_json)?;
    Ok((node, folder))
}

/// A package of npm as it was published, unpacked below `target/tools/npm`: fetched once, and refused when its bytes are not
/// the ones it was pinned with. Nothing of it is run.
///
/// # Errors
/// npm is missing and cannot be installed, the package cannot be had, or it is another one.
pub(crate) fn npm_package(name: &str, version: &str, sha512: &str) -> Result<PathBuf> {
    let plain = format!("{}-{version}", name.trim_start_matches('@').replace('/', "-"));
    let folder = target("tools/npm")?.join(&plain);
    let unpacked = folder.join("package");
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    println!("fetching {name}@{version} below target/tools/npm");
    std::fs::create_dir_all(&folder)?;
    let npm = system("npm", "npm")?;
    let archive = folder.join(format!("{plain}.tgz"));
    let mut pack = Command::new(npm);
    pack.args(["pack", "--silent", &format!("{name}@{version}")]).current_dir(&folder).stdout(Stdio::null());
    if !archive.is_file() && !pack.status().context("npm")?.success() {
        bail!("npm could not fetch {name}@{version}");
    }
    let digest =
        Command::new(system("sha512sum", "coreutils")?).arg(&archive).output().context("sha512sum")?;
    if !String::from_utf8_lossy(&digest.stdout).starts_with(sha512) {
        bail!("{name}@{version} is not what it was pinned as; look at {}", archive.display());
    }
    let unpacking =
        Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(&folder).status().context("tar")?;
    if !unpacking.success() || !unpacked.is_dir() {
        bail!("{} cannot be unpacked", archive.display());
    }
    Ok(unpacked)
}
