//! `retrysafe audit` of `.proto` files and sets of descriptors, with gRPC service configs.

use std::path::{Path, PathBuf};

use retrysafe_audit::{
    Node, Severity,
    proto::{self, Finding, Report},
};
use serde_json::{Value, json};

use super::{sarif, text, view::colour};
use crate::failure::Failure;

/// Endings of files that hold a `FileDescriptorSet`.
const SETS: &[&str] = &["binpb", "pb", "desc", "protoset", "fds"];

/// Whether a file is for this part.
pub(super) fn is_proto(path: &Path) -> bool {
    path.extension().and_then(|end| end.to_str()).is_some_and(|end| end == "proto" || SETS.contains(&end))
}

/// Reads, compiles and audits.
pub(super) fn audited(path: &Path, includes: &[PathBuf], configs: &[PathBuf]) -> Result<Report, Failure> {
    let configs = configs.iter().map(|config| {
        let node = Node::parse(&text(config, "a gRPC service config")?)
            .map_err(|why| Failure::usage(format!("{} {why}", config.display())))?;
        Ok((config.display().to_string(), node))
    });
    let configs: Vec<(String, Node)> = configs.collect::<Result<_, Failure>>()?;
    let refused = |why: String| Failure::usage(format!("{} {why}", path.display()));
    if path.extension().is_some_and(|end| end == "proto") {
        let (set, name) = compiled(path, includes)?;
        return proto::audit(&set, |file| file == name, &configs).map_err(refused);
    }
    let set = std::fs::read(path).map_err(|error| {
        Failure::usage(format!("{} cannot be read: {error}; name a set of descriptors", path.display()))
    })?;
    // What comes with every set is nobody's API.
    let own = |file: &str| !file.starts_with("google/protobuf/") && !file.starts_with("google/api/");
    proto::audit(&set, own, &configs).map_err(refused)
}

/// The set of a file and its imports, and the file's name in it. No compiler has to be installed.
fn compiled(path: &Path, includes: &[PathBuf]) -> Result<(Vec<u8>, String), Failure> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let mut roots = includes.to_vec();
    if roots.is_empty() {
        roots.push(folder);
    }
    let wrong = |error: protox::Error| {
        Failure::usage(format!(
            "{} is not compiled: {error}; name the folders of its imports with --proto-path",
            path.display()
        ))
    };
    let mut compiler = protox::Compiler::new(&roots).map_err(wrong)?;
    compiler.include_imports(true).include_source_info(true).open_file(path).map_err(wrong)?;
    let name = compiler.files().last().map(|file| file.name().to_owned()).unwrap_or_default();
    let own = compiler.files().find(|file| file.path() == Some(path)).map(|file| file.name().to_owned());
    Ok((compiler.encode_file_descriptor_set(), own.unwrap_or(name)))
}

pub(super) fn page(report: &Report) -> String {
    let mut page = String::new();
    for rpc in &report.rpcs {
        page += &format!(
            "{:<19} {}\n{:<19}   {}, {}, {} confidence: {}{} \"{}\"\n",
            rpc.verdict.as_str(),
            rpc.name,
            "",
            rpc.effect.as_str(),
            rpc.mechanism.as_str(),
            rpc.confidence.as_str(),
            rpc.file,
            rpc.line.map(|line| format!(":{line}")).unwrap_or_default(),
            rpc.quote
        );
    }
    page.push('\n');
    for Finding { rule, severity, rpc, message } in &report.findings {
        let style = colour(*severity).on_default().bold();
        let rpc = &report.rpcs[*rpc];
        let line = rpc.line.map(|line| format!(":{line}")).unwrap_or_default();
        page += &format!(
            "{}{line}: {style}{} {}{style:#}: {message}\n  {}\n  do: {}\n\n",
            rpc.file,
            severity.as_str(),
            rule.id,
            rpc.name,
            rule.help
        );
    }
    for entry in &report.unmatched {
        page += &format!("{entry} names nothing here\n");
    }
    let (errors, warnings) = (report.count(Severity::Error), report.count(Severity::Warning));
    page + &format!(
        "{} methods, {errors} errors, {} warnings; {} entries of configs name nothing here\n",
        report.rpcs.len(),
        warnings - errors,
        report.unmatched.len()
    )
}

pub(super) fn json(report: &Report) -> String {
    let rpcs: Vec<Value> = report
        .rpcs
        .iter()
        .map(|rpc| {
            json!({
                "name": rpc.name, "file": rpc.file, "line": rpc.line, "effect": rpc.effect.as_str(),
                "mechanism": rpc.mechanism.as_str(), "verdict": rpc.verdict.as_str(), "confidence": rpc.confidence.as_str(),
                "quote": rpc.quote,
            })
        })
        .collect();
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "rule": finding.rule.id, "severity": finding.severity.as_str(), "message": finding.message,
                "help": finding.rule.help, "rpc": report.rpcs[finding.rpc].name,
            })
        })
        .collect();
    format!("{}\n", json!({ "rpcs": rpcs, "findings": findings, "not_understood": report.unmatched }))
}

pub(super) fn sarif(report: &Report) -> String {
    let results = report.findings.iter().map(|finding| {
        let rpc = &report.rpcs[finding.rpc];
        let mut physical = json!({ "artifactLocation": { "uri": rpc.file } });
        if let Some(line) = rpc.line {
            physical["region"] = json!({ "startLine": line });
        }
        json!({
            "ruleId": finding.rule.id, "level": sarif::level(finding.severity),
            "message": { "text": format!("{}: {}. {}.", rpc.name, finding.message, finding.rule.help) },
            "locations": [{ "physicalLocation": physical, "logicalLocations": [{ "fullyQualifiedName": rpc.name }] }],
        })
    });
    sarif::log(results.collect())
}
