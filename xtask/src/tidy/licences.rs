//! What we build on: licences and second versions, judged by `deny.toml` (the format of cargo-deny, so that
//! cargo-deny can judge the same file).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use toml::Table;

use super::Finding;
use super::spdx::satisfied;
use crate::root::cargo;

/// The parts of `deny.toml` that we judge by.
pub(super) struct Policy {
    /// Platforms that count; dependencies of others are never built.
    targets: Vec<String>,
    accepted: Vec<String>,
    /// Licences accepted for one crate only.
    exceptions: BTreeMap<String, Vec<String>>,
    /// Crates that may be there in more than one version.
    skip: BTreeSet<String>,
    /// Crates that may not be there at all.
    banned: BTreeSet<String>,
}

impl Policy {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("deny.toml")?;
        let list = |section: &str, key: &str| -> Vec<toml::Value> {
            let value = table.get(section).and_then(|section| section.get(key));
            value.and_then(toml::Value::as_array).cloned().unwrap_or_default()
        };
        let accepted = strings(&list("licenses", "allow"));
        if accepted.is_empty() {
            bail!("deny.toml accepts no licence; it needs [licenses] allow");
        }
        let exceptions = list("licenses", "exceptions")
            .iter()
            .filter_map(|entry| {
                let allowed = entry.get("allow").and_then(toml::Value::as_array)?;
                Some((crate_name(entry)?, strings(allowed)))
            })
            .collect();
        let crates = |key: &str| list("bans", key).iter().filter_map(crate_name).collect();
        Ok(Self {
            targets: strings(&list("graph", "targets")),
            accepted,
            exceptions,
            skip: crates("skip"),
            banned: crates("deny"),
        })
    }
}

fn strings(values: &[toml::Value]) -> Vec<String> {
    values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// `"name"`, or `{ crate = "name@version", reason = ".." }`.
fn crate_name(entry: &toml::Value) -> Option<String> {
    let name = entry.as_str().or_else(|| entry.get("crate").and_then(toml::Value::as_str))?;
    Some(name.split('@').next().unwrap_or(name).to_owned())
}

/// `cargo metadata` of the locked workspace with the packages of the platforms that count.
pub(super) fn metadata(policy: &Policy) -> Result<Value> {
    let mut arguments = vec!["metadata".to_owned(), "--format-version=1".into(), "--locked".into()];
    arguments.extend(policy.targets.iter().map(|target| format!("--filter-platform={target}")));
    let output = cargo(arguments).output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata answered no JSON")
}

/// Name, version and licence of every package we did not write.
fn foreign(metadata: &Value) -> impl Iterator<Item = (&str, &str, &str)> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter(|package| !package["source"].is_null()).map(|package| {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        (text("name"), text("version"), text("license"))
    })
}

pub(super) fn check_licences(metadata: &Value, policy: &Policy) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, version, licence) in foreign(metadata) {
        let own = policy.exceptions.get(name).is_some_and(|allowed| satisfied(licence, allowed));
        if policy.banned.contains(name) {
            findings.push(Finding::whole(format!("{name} {version}"), "is banned by deny.toml"));
        }
        if !own && !satisfied(licence, &policy.accepted) {
            let licence = if licence.is_empty() { "no licence" } else { licence };
            findings.push(Finding::whole(
                format!("{name} {version}"),
                format!("{licence} is not accepted by deny.toml"),
            ));
        }
    }
    findings
}

pub(super) fn check_duplicates(metadata: &Value, policy: &Policy) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version, _) in foreign(metadata) {
        versions.entry(name).or_default().insert(version);
    }
    let doubled = |name: &str| versions.get(name).is_some_and(|versions| versions.len() > 1);
    let mut findings = Vec::new();
    for (name, versions) in &versions {
        if doubled(name) && !policy.skip.contains(*name) {
            let versions: Vec<&str> = versions.iter().copied().collect();
            findings
                .push(Finding::whole(*name, format!("built in several versions: {}", versions.join(", "))));
        }
    }
    for name in policy.skip.iter().filter(|name| !doubled(name)) {
        findings.push(Finding::whole(
            "deny.toml",
            format!("skips {name}, which is there in one version or none"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DENY: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["MIT"]
        exceptions = [{ crate = "roots", allow = ["CDLA-Permissive-2.0"] }]
        [bans]
        skip = [{ crate = "syn", reason = "two generations" }]
        deny = ["openssl"]
    "#;

    fn packages(rows: &[(&str, &str, &str)]) -> Value {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(name, version, licence)| json!({ "name": name, "version": version, "license": licence, "source": "x" }))
            .collect();
        json!({ "packages": rows })
    }

    #[test]
    fn licences_are_judged_by_the_policy() {
        let policy = Policy::parse(DENY).expect("fixture");
        let metadata = packages(&[
            ("good", "1.0.0", "MIT OR GPL-3.0"),
            ("roots", "1.0.0", "CDLA-Permissive-2.0"),
            ("other", "1.0.0", "CDLA-Permissive-2.0"),
            ("none", "1.0.0", ""),
            ("openssl", "1.0.0", "MIT"),
        ]);
        let found: Vec<String> = check_licences(&metadata, &policy).into_iter().map(|it| it.at).collect();
        assert_eq!(found, ["other 1.0.0", "none 1.0.0", "openssl 1.0.0"]);
    }

    #[test]
    fn a_second_version_is_found_unless_skipped_and_so_is_a_stale_skip() {
        let policy = Policy::parse(DENY).expect("fixture");
        let two = packages(&[
            ("syn", "1.0.0", ""),
            ("syn", "2.0.0", ""),
            ("rand", "1.0.0", ""),
            ("rand", "2.0.0", ""),
        ]);
        let found = check_duplicates(&two, &policy);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, "rand");
        let one = packages(&[("syn", "2.0.0", "")]);
        assert_eq!(check_duplicates(&one, &policy)[0].at, "deny.toml");
    }

    #[test]
    fn a_policy_that_accepts_nothing_is_refused() {
        assert!(Policy::parse("").is_err());
        assert!(Policy::parse("[licenses]\nallow = []").is_err());
    }
}
