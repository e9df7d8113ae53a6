//! `retrysafe overlay` as a process, its overlay applied by a library that is not ours.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::path::Path;

use enumset::EnumSet;
use roas_overlay::{apply::Apply as _, validation::Validate as _};
use serde_json::Value;
use support::{retrysafe, text};

const SHOP: &str = include_str!("../assets/shop.toml");
const DOCUMENT: &str = "\
openapi: 3.0.3
info: {title: Shop, version: '1'}
servers: [{url: 'https://shop.example'}]
paths:
  /orders:
    get: {responses: {'200': {description: ok}}}
    post: {responses: {'201': {description: made}}}
  /orders/{order_id}:
    delete:
      parameters: [{name: order_id, in: path, required: true, schema: {type: string}}]
      responses: {'204': {description: gone}, '409': {description: our own}}
  /payments:
    parameters: [{$ref: '#/components/parameters/Key'}]
    post: {responses: {'201': {description: paid}}}
  /v1/charges:
    post: {parameters: [], responses: {'200': {description: ok}}}
  /notes:
    post: {responses: {'201': {description: noted}}}
components: {parameters: {Key: {name: idempotency-key, in: header, schema: {type: string}}}}
";

fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("retrysafe.toml"), SHOP).unwrap();
    std::fs::write(folder.path().join("openapi.yaml"), DOCUMENT).unwrap();
    folder
}

/// The document with the overlay of this version on it, `times` times, and what was said.
fn applied(folder: &Path, spec: &str, times: usize) -> Value {
    let output = retrysafe(folder, &["overlay", "openapi.yaml", "--spec", spec, "--out", "o.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let overlay = std::fs::read_to_string(folder.join("o.json")).unwrap();
    let mut document: Value = serde_saphyr::from_str(DOCUMENT).unwrap();
    for _ in 0..times {
        if spec == "1.0" {
            let overlay: roas_overlay::v1_0::Overlay = serde_json::from_str(&overlay).unwrap();
            overlay.validate(EnumSet::empty()).unwrap();
            overlay.apply(&mut document, EnumSet::empty()).unwrap();
        } else {
            let overlay: roas_overlay::v1_1::Overlay = serde_json::from_str(&overlay).unwrap();
            overlay.validate(EnumSet::empty()).unwrap();
            overlay.apply(&mut document, EnumSet::empty()).unwrap();
        }
    }
    document
}

#[test]
fn the_overlay_adds_the_contract_and_applied_again_nothing() {
    let folder = project();
    for spec in ["1.0", "1.1"] {
        let once = applied(folder.path(), spec, 1);
        assert_eq!(applied(folder.path(), spec, 2), once, "{spec}");
        let order = &once["paths"]["/orders"]["post"];
        assert_eq!(
            order["parameters"],
            serde_json::json!([{ "$ref": "#/components/parameters/IdempotencyKey" }])
        );
        assert_eq!(once["components"]["parameters"]["IdempotencyKey"]["required"], true);
        let extension = &order["x-idempotency"];
        assert_eq!(
            (&extension["support"], &extension["replay-window"]),
            (&"required".into(), &"PT24H".into())
        );
        assert_eq!(extension["in-flight"]["code"], "idempotency_key_in_flight");
        assert_eq!(
            (&extension["stored"]["422"], &extension["stored"]["429"]),
            (&"replay".into(), &"rerun".into())
        );
        let conflict = order["responses"]["409"]["$ref"].as_str().unwrap();
        let conflict = once.pointer(conflict.trim_start_matches('#')).unwrap();
        assert!(
            conflict["description"].as_str().unwrap().contains("idempotency_key_payload_mismatch"),
            "{conflict}"
        );
        let refused = order["responses"]["400"]["$ref"].as_str().unwrap();
        assert!(once.pointer(refused.trim_start_matches('#')).is_some());
        // What the document says itself stays.
        assert_eq!(
            once["paths"]["/orders/{order_id}"]["delete"]["responses"]["409"]["description"],
            "our own"
        );
        assert_eq!(once["paths"]["/orders/{order_id}"]["delete"]["parameters"].as_array().unwrap().len(), 2);
        assert!(
            once["paths"]["/payments"]["post"].get("parameters").is_none(),
            "its path declares the header"
        );
        assert_eq!(
            once["paths"]["/orders"]["get"],
            serde_json::json!({ "responses": { "200": { "description": "ok" } } })
        );
        assert_eq!(once["paths"]["/v1/charges"]["post"]["parameters"].as_array().unwrap().len(), 1);
    }
}

/// Made anew for the document that has it already, the overlay adds no second parameter.
#[test]
fn an_overlay_of_the_result_adds_no_second_parameter() {
    let folder = project();
    let once = applied(folder.path(), "1.0", 1);
    std::fs::write(folder.path().join("openapi.yaml"), once.to_string()).unwrap();
    let output = retrysafe(folder.path(), &["overlay", "openapi.yaml"]);
    assert!(!text(&output.stdout).contains("IdempotencyKey'"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("declares Idempotency-Key itself"));
}

#[test]
fn what_does_not_match_is_told_both_ways() {
    let folder = project();
    let output = retrysafe(folder.path(), &["overlay", "openapi.yaml"]);
    assert!(output.status.success());
    let told = text(&output.stderr);
    for said in [
        "POST /v1/payment_intents of the contract is not in this document",
        "POST /notes is not in the contract and passes unguarded",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    let read: Value = serde_saphyr::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(read["overlay"], "1.0.0");
    assert_eq!(retrysafe(folder.path(), &["overlay", "openapi.yaml", "--strict"]).status.code(), Some(1));
}

#[test]
fn what_is_no_document_is_refused() {
    let folder = project();
    std::fs::write(folder.path().join("old.yaml"), "swagger: '2.0'\n").unwrap();
    for (file, word) in
        [("old.yaml", "Swagger 2.0"), ("gone.yaml", "gone.yaml"), ("retrysafe.toml", "neither YAML nor JSON")]
    {
        let output = retrysafe(folder.path(), &["overlay", file]);
        assert_eq!(output.status.code(), Some(2), "{file}");
        assert!(text(&output.stderr).contains(word), "{file}: {}", text(&output.stderr));
    }
}
