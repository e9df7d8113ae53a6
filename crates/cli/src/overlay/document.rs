//! An OpenAPI document, as far as an overlay needs it: which operation is where, and what it declares.

use serde_json::{Map, Value};

/// The document.
pub(super) struct Document {
    root: Value,
    /// Paths of the servers' URLs: what stands in front of every path.
    bases: Vec<String>,
}

/// An operation of the document.
pub(super) struct Operation<'a> {
    /// Its path, as the document spells it.
    pub(super) path: &'a str,
    /// Its method, as the document spells it.
    pub(super) method: String,
    own: &'a Value,
    item: &'a Value,
}

const METHODS: [&str; 4] = ["post", "put", "patch", "delete"];
/// A chain of references longer than this leads in a circle.
const REFERENCES_MAX: usize = 32;

impl Document {
    /// Reads YAML, and JSON, which is YAML.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let root: Value =
            serde_saphyr::from_str(text).map_err(|error| format!("is neither YAML nor JSON: {error}"))?;
        match root.get("openapi").and_then(Value::as_str) {
            Some(version) if version.starts_with("3.") => {}
            Some(version) => {
                return Err(format!("is OpenAPI {version}; overlays are made for 3.0 and later"));
            }
            None if root.get("swagger").is_some() => {
                return Err("is Swagger 2.0; convert it to OpenAPI 3 first".to_owned());
            }
            None => return Err("is no OpenAPI document: it has no `openapi`".to_owned()),
        }
        let servers = root.get("servers").and_then(Value::as_array).into_iter().flatten();
        let urls = servers.filter_map(|server| server.get("url").and_then(Value::as_str));
        let mut bases: Vec<String> = urls.map(base).filter(|base| !base.is_empty()).collect();
        bases.push(String::new());
        Ok(Self { root, bases })
    }

    /// The operation of a contract's endpoint. Names of parameters do not matter; the path may begin with a server's.
    pub(super) fn find(&self, method: &str, path: &str) -> Option<Operation<'_>> {
        let wanted = anonymous(path);
        self.operations().find(|operation| {
            operation.method.eq_ignore_ascii_case(method)
                && self.bases.iter().any(|base| anonymous(&format!("{base}{}", operation.path)) == wanted)
        })
    }

    /// Every operation that may change state.
    pub(super) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let paths = self.root.get("paths").and_then(Value::as_object).into_iter().flatten();
        paths.flat_map(|(path, item)| {
            let own = move |method: &str| {
                let own = item.get(method)?;
                Some(Operation { path, method: method.to_owned(), own, item })
            };
            METHODS.into_iter().filter_map(own)
        })
    }

    /// Whether an operation declares a header of this name, by itself or with its path, written out or referred to.
    pub(super) fn declares_header(&self, operation: &Operation<'_>, header: &str) -> bool {
        let lists =
            [operation.own, operation.item].map(|owner| owner.get("parameters").and_then(Value::as_array));
        lists.into_iter().flatten().flatten().any(|parameter| {
            let parameter = self.resolved(parameter);
            let field = |name| parameter.get(name).and_then(Value::as_str).unwrap_or_default();
            field("in") == "header" && field("name").eq_ignore_ascii_case(header)
        })
    }

    /// What a reference within the document stands for.
    fn resolved<'a>(&'a self, mut value: &'a Value) -> &'a Value {
        for _ in 0..REFERENCES_MAX {
            let reference =
                value.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
            match reference.and_then(|pointer| self.root.pointer(pointer)) {
                Some(next) => value = next,
                None => break,
            }
        }
        value
    }

    /// The named components of a kind that the document has.
    pub(super) fn components(&self, kind: &str) -> Option<&Map<String, Value>> {
        self.root.get("components")?.get(kind)?.as_object()
    }
}

impl Operation<'_> {
    /// Whether it declares this status.
    pub(super) fn declares_status(&self, status: u16) -> bool {
        let responses = self.own.get("responses").and_then(Value::as_object);
        responses.is_some_and(|responses| responses.contains_key(&status.to_string()))
    }
}

/// The path of a server's URL, without its last slash.
fn base(url: &str) -> String {
    let rest =
        url.split_once("://").map_or(url, |(_, rest)| rest.find('/').map_or("", |slash| &rest[slash..]));
    rest.trim_end_matches('/').to_owned()
}

/// A path without the names of its parameters.
fn anonymous(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_their_shape() {
        let text = [
            "openapi: 3.0.3",
            "servers: [{url: 'https://x.example/v1/'}]",
            "paths:",
            "  /orders/{order_id}:",
            "    delete: {}",
            "  /a:",
            "    get: {}",
            "    post: {}",
        ]
        .join("\n");
        let document = Document::parse(&text).unwrap();
        assert_eq!(document.find("DELETE", "/orders/{id}").unwrap().path, "/orders/{order_id}");
        assert_eq!(document.find("POST", "/v1/a").unwrap().path, "/a");
        assert!(document.find("POST", "/v2/a").is_none() && document.find("GET", "/a").is_none());
    }

    #[test]
    fn other_documents_are_told_apart() {
        for (text, word) in [
            ("swagger: '2.0'", "convert"),
            ("a: 1", "no `openapi`"),
            ("openapi: 4.0.0", "4.0.0"),
            ("a: [", "neither"),
        ] {
            assert!(Document::parse(text).err().unwrap().contains(word), "{text}");
        }
    }

    #[test]
    fn references_that_lead_in_a_circle_end() {
        let text = "openapi: 3.1.0\ncomponents: {parameters: {A: {$ref: '#/components/parameters/A'}}}\n\
                    paths: {/a: {post: {parameters: [{$ref: '#/components/parameters/A'}]}}}";
        let document = Document::parse(text).unwrap();
        assert!(!document.declares_header(&document.find("POST", "/a").unwrap(), "Idempotency-Key"));
    }
}
