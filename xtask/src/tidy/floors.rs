//! Which crate may stand on which (design 2): a floor depends only on lower ones, `client` never on `server`.

use serde_json::Value;

use super::Finding;

/// Every crate others may depend on, and the workspace crates it may itself depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("retrysafe-core", &[]),
    ("retrysafe-audit", &["retrysafe-core"]),
    ("retrysafe-design", &["retrysafe-core"]),
    ("retrysafe-store", &["retrysafe-core"]),
    ("retrysafe-server", &["retrysafe-core", "retrysafe-store"]),
    ("retrysafe-client", &["retrysafe-core"]),
    ("retrysafe-gateway", &["retrysafe-core", "retrysafe-store", "retrysafe-server"]),
    // It judges servers from outside: what is inside one is none of its business.
    ("retrysafe-gates", &["retrysafe-core"]),
    ("retrysafe", &["retrysafe-core", "retrysafe-store", "retrysafe-server", "retrysafe-client"]),
    // An example uses what a user would.
    ("example-checkout", &["retrysafe"]),
    ("example-invoices-rabbitmq", &["retrysafe"]),
    ("example-orders", &["retrysafe"]),
    ("example-rides", &["retrysafe"]),
    ("example-webhooks", &["retrysafe"]),
    // The sample API stands alone: it plays somebody else's service.
    ("retrysafe-shop", &[]),
    (
        "retrysafe-cli",
        &[
            "retrysafe-core",
            "retrysafe-audit",
            "retrysafe-design",
            "retrysafe-store",
            "retrysafe-server",
            "retrysafe-client",
            "retrysafe-gates",
            "retrysafe-gateway",
            "retrysafe-shop",
        ],
    ),
];

/// Crates that test and measure: they may use anything, and no product crate may be built on them.
const PRIVATE: &[&str] =
    &["retrysafe-mutants", "retrysafe-sim", "retrysafe-proofs", "retrysafe-testbed", "xtask"];

pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Without a source a package comes from a path: it is ours.
    let ours: Vec<(&str, &Value)> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .filter_map(|package| Some((package["name"].as_str()?, package)))
        .collect();
    let mut findings = Vec::new();
    if ours.is_empty() {
        findings.push(Finding::whole("cargo metadata", "names no crate of this workspace"));
    }
    for (name, package) in &ours {
        if PRIVATE.contains(name) {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(crate_name, _)| crate_name == name) else {
            findings.push(Finding::whole(*name, "has no floor; give it one in xtask/src/tidy/floors.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let used = dependency["name"].as_str().unwrap_or_default();
            // Tests may reach across floors, with the one exception that no proof may mix the two ends.
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let forbidden_in_tests = *name == "retrysafe-client" && used == "retrysafe-server";
            if !ours.iter().any(|(crate_name, _)| *crate_name == used)
                || allowed.contains(&used)
                || (for_tests && !forbidden_in_tests)
            {
                continue;
            }
            findings
                .push(Finding::whole(*name, format!("may not depend on {used}: it is not on a lower floor")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workspace(edges: &[(&str, &str, Option<&str>)]) -> Value {
        let mut names: Vec<&str> = edges.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        names.sort_unstable();
        names.dedup();
        let packages: Vec<Value> = names
            .iter()
            .map(|name| {
                let dependencies: Vec<Value> = edges
                    .iter()
                    .filter(|(from, ..)| from == name)
                    .map(|(_, to, kind)| json!({ "name": to, "kind": kind }))
                    .collect();
                json!({ "name": name, "source": null, "dependencies": dependencies })
            })
            .collect();
        json!({ "packages": packages })
    }

    #[test]
    fn an_upward_edge_is_found() {
        let found = check(&workspace(&[("retrysafe-core", "retrysafe-store", None)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, "retrysafe-core");
    }

    #[test]
    fn the_client_meets_the_server_not_even_in_tests() {
        assert_eq!(check(&workspace(&[("retrysafe-client", "retrysafe-server", Some("dev"))])).len(), 1);
    }

    #[test]
    fn product_crates_do_not_stand_on_private_ones_but_tests_may_use_them() {
        assert_eq!(check(&workspace(&[("retrysafe-store", "retrysafe-sim", None)])).len(), 1);
        assert!(check(&workspace(&[("retrysafe-store", "retrysafe-sim", Some("dev"))])).is_empty());
    }

    #[test]
    fn a_crate_without_a_floor_is_found() {
        let found = check(&workspace(&[("retrysafe-extra", "retrysafe-core", None)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("no floor"));
    }

    #[test]
    fn downward_edges_are_fine_and_no_crate_at_all_is_not() {
        assert!(check(&workspace(&[("retrysafe-gateway", "retrysafe-server", None)])).is_empty());
        assert_eq!(check(&json!({ "packages": [] })).len(), 1);
    }
}
