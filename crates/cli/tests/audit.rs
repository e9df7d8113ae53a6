//! `retrysafe audit` as a process: what it prints, in every format, and how it ends.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

mod support;

use support::{retrysafe, text};

const API: &str = "openapi: 3.1.0
info: {title: Orders, version: '1'}
paths:
  /orders:
    get: {responses: {'200': {description: ok}}}
    post:
      operationId: createOrder
      responses: {'201': {description: made}}
  /orders/{id}:
    delete: {responses: {'204': {description: gone}}}
";

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder
}

#[test]
fn the_page_has_totals_verdicts_places_and_advice() {
    let folder = project(&[("api/openapi.yaml", API)]);
    let output = retrysafe(folder.path(), &["audit", "api/openapi.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let page = text(&output.stdout);
    for said in [
        "openapi.yaml: Orders (OpenAPI 3.1.0)",
        "3 operations, 2 may change state: 1 DELETE, 1 POST",
        "1 undocumented",
        "error A101",
        "openapi.yaml:6  POST /orders",
        "do: accept an idempotency key",
        "1 errors, 0 warnings, 1 notes; 0 places not understood",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(!page.contains('\u{1b}'), "colour only on a terminal");
}

#[test]
fn every_format_is_whole() {
    let folder = project(&[("openapi.yaml", &API.replace("Orders", "<Orders & Co>"))]);
    let printed = |format: &str| {
        let output = retrysafe(folder.path(), &["audit", "openapi.yaml", "--format", format]);
        assert_eq!(output.status.code(), Some(1), "{format}");
        text(&output.stdout)
    };
    let json: serde_json::Value = serde_json::from_str(&printed("json")).unwrap();
    assert_eq!(json["totals"]["mutating"], 2);
    assert_eq!(json["operations"][1]["verdict"], "undocumented");
    assert_eq!((&json["findings"][0]["rule"], &json["findings"][0]["line"]), (&"A101".into(), &6.into()));
    let sarif: serde_json::Value = serde_json::from_str(&printed("sarif")).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!((&result["ruleId"], &result["level"]), (&"A101".into(), &"error".into()));
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 6);
    let junit = printed("junit");
    assert!(
        junit.contains("tests=\"3\" failures=\"1\"") && junit.contains("<failure type=\"A101\""),
        "{junit}"
    );
    assert!(printed("markdown").contains("| `POST /orders` | create | none | undocumented |"));
    let html = printed("html");
    assert!(html.contains("&lt;Orders &amp; Co&gt;") && !html.contains("<Orders"), "{html}");
    assert!(!html.contains("src=") && !html.contains("<script"), "the page needs nothing else");
}

#[test]
fn split_files_are_followed_and_missing_ones_told() {
    let root = "openapi: 3.0.3\npaths:\n  /a: {$ref: 'paths/a.yaml'}\n  /b: {$ref: 'paths/none.yaml'}\n  /c: {$ref: 'https://example.com/c.yaml'}\n";
    let folder = project(&[
        ("openapi.yaml", root),
        (
            "paths/a.yaml",
            "post:\n  parameters: [{$ref: '../parts/key.json#/Key'}]\n  responses: {'201': {description: made}}\n",
        ),
        (
            "parts/key.json",
            r#"{"Key": {"name": "Idempotency-Key", "in": "header", "required": true, "schema": {"type": "string"}}}"#,
        ),
    ]);
    let output = retrysafe(folder.path(), &["audit", "openapi.yaml", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let operation = &json["operations"][0];
    assert_eq!((&operation["verdict"], &operation["file"]), (&"key-required".into(), &"paths/a.yaml".into()));
    assert_eq!(json["totals"]["not_understood"], 2);
    let told = json["not_understood"].to_string();
    assert!(told.contains("none.yaml") && told.contains("in the network"), "{told}");
}

#[test]
fn what_cannot_be_read_is_told_with_its_place_and_ends_with_2() {
    for (content, said) in [
        ("openapi: 3.0.0\npaths: [", "line"),
        ("{\"openapi\": \"3.0.0\" \"x\"}", "line 1 column 21"),
        ("a: 1", "neither `openapi` nor `swagger`"),
        ("openapi: 4.0.0", "is OpenAPI 4.0.0"),
    ] {
        let folder = project(&[("x.yaml", content)]);
        let output = retrysafe(folder.path(), &["audit", "x.yaml"]);
        assert_eq!(output.status.code(), Some(2), "{content}");
        assert!(text(&output.stderr).contains(said), "{content}: {}", text(&output.stderr));
    }
    let folder = project(&[]);
    assert_eq!(retrysafe(folder.path(), &["audit", "none.yaml"]).status.code(), Some(2));
}

#[test]
fn baselines_waivers_and_strictness_decide_the_exit() {
    let folder = project(&[("openapi.yaml", API)]);
    let code =
        |args: &[&str]| retrysafe(folder.path(), &[&["audit", "openapi.yaml"], args].concat()).status.code();
    assert_eq!(code(&["--write-baseline", "base.json"]), Some(0));
    assert_eq!(code(&["--baseline", "base.json"]), Some(0));
    let waiver = |until: &str| {
        format!(
            "[[waiver]]\nrule = 'A101'\noperation = 'POST /orders'\nreason = 'moves'\nuntil = '{until}'\n"
        )
    };
    std::fs::write(folder.path().join("waivers.toml"), waiver("9999-12-31")).unwrap();
    assert_eq!(code(&["--waivers", "waivers.toml"]), Some(0));
    std::fs::write(folder.path().join("waivers.toml"), waiver("2020-01-01")).unwrap();
    assert_eq!(code(&["--waivers", "waivers.toml"]), Some(1));
    std::fs::write(folder.path().join("waivers.toml"), waiver("soon")).unwrap();
    assert_eq!(code(&["--waivers", "waivers.toml"]), Some(2));
    std::fs::write(
        folder.path().join("openapi.yaml"),
        "openapi: 3.0.0\npaths: {/a: {get: {operationId: deleteA, summary: Deletes a, responses: {}}}}",
    )
    .unwrap();
    assert_eq!((code(&[]), code(&["--strict"])), (Some(0), Some(1)));
}

/// The sample contract and the overlay that `retrysafe overlay` makes of it are what the audit asks for.
#[test]
fn the_contract_is_compared() {
    let folder = project(&[("openapi.yaml", API), ("retrysafe.toml", include_str!("../assets/shop.toml"))]);
    let output =
        retrysafe(folder.path(), &["audit", "openapi.yaml", "--contract", "retrysafe.toml", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|one| one["rule"].as_str()).collect();
    assert!(rules.contains(&"X903"), "{rules:?}");
}

#[test]
fn the_rules_are_listed() {
    let folder = project(&[]);
    let output = retrysafe(folder.path(), &["audit", "--rules"]);
    assert!(output.status.success() && text(&output.stdout).contains("A101 error"));
}

#[test]
fn source_code_is_audited_below_folders_and_decides_the_exit() {
    let minted = "async function a() {\n  for (let attempt = 0; attempt < 3; attempt++) {\n    return await post({ idempotencyKey: crypto.randomUUID() });\n  }\n}\n";
    let folder = project(&[
        ("src/a.ts", minted),
        ("src/node_modules/b.js", minted),
        ("src/readme.md", "x"),
        ("fine.py", "key = uuid4()\n"),
        ("cut.go", "package a\nfunc {"),
    ]);
    let output = retrysafe(folder.path(), &["audit", "--code", "src"]);
    assert_eq!(output.status.code(), Some(1));
    let page = text(&output.stdout);
    assert!(
        page.contains("src/a.ts:3: error P101") && page.contains("1 files, 1 errors, 0 warnings"),
        "{page}"
    );
    assert_eq!(retrysafe(folder.path(), &["audit", "--code", "fine.py"]).status.code(), Some(0));
    let output = retrysafe(folder.path(), &["audit", "--json", "--code", "cut.go", "src"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["errors"], json["not_understood"].as_array().unwrap().len()), (&1.into(), 1));
    let output = retrysafe(folder.path(), &["audit", "--format", "sarif", "--code", "src"]);
    let sarif: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "P101");
    for wrong in [
        &["audit", "--code", "src/readme.md"][..],
        &["audit", "--code", "none"],
        &["audit", "--format", "html", "--code", "src"],
    ] {
        assert_eq!(retrysafe(folder.path(), wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn protobuf_is_compiled_without_a_compiler() {
    let folder = project(&[
        (
            "api/shop.proto",
            "syntax = \"proto3\";\npackage shop;\nimport \"parts/order.proto\";\nservice Shop {\n  rpc CreateOrder(parts.Order) returns (parts.Order);\n}\n",
        ),
        (
            "api/parts/order.proto",
            "syntax = \"proto3\";\npackage parts;\nmessage Order { string id = 1; }\nservice Hidden { rpc CreateIt(Order) returns (Order); }\n",
        ),
        ("api/broken.proto", "syntax = \"proto3\";\nservice {"),
        (
            "grpc.json",
            r#"{"methodConfig": [{"name": [{"service": "shop.Shop"}], "retryPolicy": {"retryableStatusCodes": ["UNAVAILABLE"]}}]}"#,
        ),
    ]);
    let output =
        retrysafe(folder.path(), &["audit", "api/shop.proto", "--service-config", "grpc.json", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["rpcs"].as_array().unwrap().len(), 1, "imports are somebody else's");
    let rules: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|one| one["rule"].as_str()).collect();
    assert_eq!(rules, ["G801", "G802"]);
    // Only names say so: warnings.
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(retrysafe(folder.path(), &["audit", "api/shop.proto", "--strict"]).status.code(), Some(1));
    let output = retrysafe(folder.path(), &["audit", "api/broken.proto"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is not compiled"), "{}", text(&output.stderr));
}
