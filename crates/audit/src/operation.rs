//! The operations of an OpenAPI document of any version (2.0 to 3.2), and what each declares.
//!
//! What could not be followed is in [`Inventory::unread`], with its place: nothing is skipped silently.

use std::collections::HashSet;

use crate::{
    bundle::{Bundle, Found, Place},
    tree::Node,
};

/// Schemas of schemas of a body are looked into this deep.
const SCHEMA_DEPTH_MAX: usize = 8;
/// Fields of one body that are looked at.
const FIELDS_MAX: usize = 5_000;
/// Callbacks of callbacks.
const CALLBACKS_DEPTH_MAX: usize = 4;

const METHODS: [&str; 9] = ["get", "put", "post", "delete", "options", "head", "patch", "trace", "query"];

/// Every operation of a document, and what was not understood.
#[derive(Debug)]
pub struct Inventory<'a> {
    /// `2.0`, `3.0.3`.
    pub version: &'a str,
    /// The title of the API.
    pub title: &'a str,
    /// The document's description of itself.
    pub(crate) about: String,
    /// Hosts of its servers.
    pub(crate) hosts: Vec<&'a str>,
    /// Paths of its servers' URLs: what may stand in front of every path.
    pub(crate) bases: Vec<String>,
    /// The operations, in the order of the document.
    pub operations: Vec<Operation<'a>>,
    /// What was not understood, and where.
    pub unread: Vec<(Place, String)>,
}

/// Who calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The API's users.
    Path,
    /// The API, at an address of its user.
    Webhook,
    /// The API, as an answer to a call.
    Callback,
}

/// One operation.
#[derive(Debug)]
pub struct Operation<'a> {
    /// Upper case.
    pub method: String,
    /// As the document spells it.
    pub path: &'a str,
    /// Who calls it.
    pub direction: Direction,
    /// `operationId`.
    pub id: Option<&'a str>,
    pub(crate) summary: &'a str,
    pub(crate) description: &'a str,
    pub(crate) tags: Vec<&'a str>,
    /// Deprecated, or `x-internal`: listed, and judged like any other.
    pub deprecated: bool,
    pub(crate) parameters: Vec<Parameter<'a>>,
    pub(crate) body: Body<'a>,
    pub(crate) responses: Vec<Response<'a>>,
    pub(crate) own: Found<'a>,
}

/// Where a parameter is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum In {
    Header,
    Query,
    Path,
    Body,
    Other,
}

/// A parameter, or a field of a body.
#[derive(Clone, Debug)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) place_in: In,
    pub(crate) required: bool,
    /// Of the parameter and of its schema.
    pub(crate) description: String,
    /// What may bound it: the parameter and its schema.
    pub(crate) shape: [&'a Node; 2],
    /// Where its own text stands.
    pub(crate) at: Place,
    /// It is declared with the path, for all of its methods.
    pub(crate) with_path: bool,
    /// It is no field of the body itself, but of something in it.
    pub(crate) nested: bool,
}

/// Paths that have members in the same document: `/orders` beside `/orders/{id}`.
pub(crate) fn collections<'a>(inventory: &Inventory<'a>) -> HashSet<&'a str> {
    let members = inventory.operations.iter().filter_map(|operation| {
        let (above, last) = operation.path.trim_end_matches('/').rsplit_once('/')?;
        (last.starts_with('{') && last.ends_with('}')).then_some(above)
    });
    members.collect()
}

impl Parameter<'_> {
    /// A member of the parameter or of its schema.
    pub(crate) fn shaped(&self, key: &str) -> Option<&Node> {
        self.shape.iter().find_map(|node| node.get(key))
    }
}

/// What is sent.
#[derive(Debug, Default)]
pub(crate) struct Body<'a> {
    pub(crate) media: Vec<&'a str>,
    pub(crate) fields: Vec<Parameter<'a>>,
    /// The body is a list.
    pub(crate) list: bool,
}

/// What is answered.
#[derive(Debug)]
pub(crate) struct Response<'a> {
    /// `201`, `4XX`, `default`.
    pub(crate) status: &'a str,
    pub(crate) description: &'a str,
    pub(crate) headers: Vec<&'a str>,
    pub(crate) media: Vec<&'a str>,
    /// The names of its fields.
    pub(crate) fields: Vec<&'a str>,
    /// It answers with a list, or with an object that holds one.
    pub(crate) list: bool,
}

impl Operation<'_> {
    /// `POST /orders`.
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Where it stands.
    pub fn place(&self) -> &Place {
        &self.own.place
    }

    /// Whether its method may change state: everything that RFC 9110 and OpenAPI do not call safe.
    pub fn may_change(&self) -> bool {
        !matches!(&*self.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY")
    }

    /// Whether it declares this status, by itself or as one of its class. `default` is no declaration of any status.
    pub(crate) fn declares(&self, status: u16) -> bool {
        let class = format!("{}xx", status / 100);
        self.responses
            .iter()
            .any(|one| one.status.parse() == Ok(status) || one.status.eq_ignore_ascii_case(&class))
    }

    /// An extension, at the operation.
    pub(crate) fn extension(&self, name: &str) -> Option<Found<'_>> {
        self.own.get(name)
    }

    /// Summary and description, for searching.
    pub(crate) fn prose(&self) -> String {
        crate::words::prose(&format!("{}. {}", self.summary, self.description))
    }
}

/// Reads a document.
///
/// # Errors
/// It is no OpenAPI document; says what it is instead.
pub(crate) fn inventory(bundle: &Bundle) -> Result<Inventory<'_>, String> {
    let root = bundle.root();
    let version = match (root.node.get("openapi"), root.node.get("swagger")) {
        (Some(Node::Text(version)), _) if version.starts_with("3.") => version,
        (_, Some(Node::Text(version))) if &**version == "2.0" => version,
        (_, Some(Node::Number(_))) => "2.0",
        (Some(Node::Text(version)), _) | (_, Some(Node::Text(version))) => {
            return Err(format!("is OpenAPI {version}; 2.0 and 3.0 to 3.2 are read"));
        }
        _ => return Err("is no OpenAPI document: it has neither `openapi` nor `swagger`".to_owned()),
    };
    let info = root.node.get("info");
    let described =
        |node: Option<&Node>| node.and_then(|node| node.text_of("description")).unwrap_or("").to_owned();
    let mut reader = Reader {
        bundle,
        swagger: version == "2.0",
        inventory: Inventory {
            version,
            title: info.and_then(|info| info.text_of("title")).unwrap_or(""),
            about: [described(info), described(root.node.get("externalDocs"))].join("\n"),
            hosts: Vec::new(),
            bases: Vec::new(),
            operations: Vec::new(),
            unread: Vec::new(),
        },
    };
    reader.servers(&root);
    for (key, direction) in [("paths", Direction::Path), ("webhooks", Direction::Webhook)] {
        if let Some(paths) = root.get(key) {
            reader.paths(&paths, direction, 0);
        }
    }
    Ok(reader.inventory)
}

struct Reader<'a> {
    bundle: &'a Bundle,
    swagger: bool,
    inventory: Inventory<'a>,
}

impl<'a> Reader<'a> {
    fn servers(&mut self, root: &Found<'a>) {
        let urls = root.node.get("servers").into_iter().flat_map(Node::items);
        for url in urls.filter_map(|server| server.text_of("url")) {
            let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !host.is_empty() {
                self.inventory.hosts.push(host);
            }
            self.inventory.bases.push(path.trim_end_matches('/').to_owned());
        }
        self.inventory.hosts.extend(root.node.text_of("host"));
        if let Some(base) = root.node.text_of("basePath") {
            self.inventory.bases.push(base.trim_end_matches('/').to_owned());
        }
        self.inventory.bases.push(String::new());
    }

    fn unread(&mut self, place: Place, why: impl Into<String>) {
        self.inventory.unread.push((place, why.into()));
    }

    /// What a value stands for, or a note that it could not be followed.
    fn resolved(&mut self, found: Found<'a>) -> Option<Found<'a>> {
        let place = found.place.clone();
        match self.bundle.resolve(found) {
            Ok(found) => Some(found),
            Err(why) => {
                self.unread(place, why);
                None
            }
        }
    }

    fn paths(&mut self, paths: &Found<'a>, direction: Direction, depth: usize) {
        if paths.node.map().is_none() {
            self.unread(paths.place.clone(), "is no object of paths");
            return;
        }
        for twice in paths.node.repeated() {
            self.unread(paths.place.step(twice), "the path is written twice; only the last one is read");
        }
        for (path, item) in paths.entries().filter(|(path, _)| !path.starts_with("x-")) {
            let own_place = item.place.clone();
            let Some(resolved) = self.resolved(item) else { continue };
            if resolved.node.map().is_none() {
                self.unread(own_place, "is no path item");
                continue;
            }
            self.item(path, &resolved, direction, depth);
        }
    }

    fn item(&mut self, path: &'a str, item: &Found<'a>, direction: Direction, depth: usize) {
        for twice in item.node.repeated() {
            self.unread(
                item.place.step(twice),
                format!("{twice} is written twice; only the last one is read"),
            );
        }
        for (key, own) in item.entries() {
            if METHODS.contains(&key) {
                self.operation(key.to_uppercase(), path, item, own, direction, depth);
            } else if key == "additionalOperations" {
                for (method, own) in own.entries() {
                    self.operation(method.to_owned(), path, item, own, direction, depth);
                }
            }
        }
    }

    fn operation(
        &mut self,
        method: String,
        path: &'a str,
        item: &Found<'a>,
        own: Found<'a>,
        direction: Direction,
        depth: usize,
    ) {
        if own.node.map().is_none() {
            self.unread(own.place, "is no operation");
            return;
        }
        let text = |key| own.node.text_of(key).unwrap_or("");
        let mut body = Body::default();
        let mut parameters = Vec::new();
        for (list, with_path) in [(own.get("parameters"), false), (item.get("parameters"), true)] {
            for one in list.iter().flat_map(Found::items) {
                self.parameter(one, with_path, &mut parameters, &mut body);
            }
        }
        if self.swagger {
            let consumes = own.node.get("consumes").or_else(|| self.bundle.root().node.get("consumes"));
            body.media = consumes.into_iter().flat_map(Node::items).filter_map(Node::text).collect();
        } else if let Some(declared) = own.get("requestBody") {
            self.body(declared, &mut body);
        }
        let responses = own.get("responses").map(|all| self.responses(&all)).unwrap_or_default();
        let operation = Operation {
            method,
            path,
            direction,
            id: own.node.text_of("operationId"),
            summary: text("summary"),
            description: text("description"),
            tags: own.node.get("tags").into_iter().flat_map(Node::items).filter_map(Node::text).collect(),
            deprecated: own.node.flag("deprecated") == Some(true)
                || own.node.flag("x-internal") == Some(true),
            parameters,
            body,
            responses,
            own: own.clone(),
        };
        self.inventory.operations.push(operation);
        let Some(callbacks) = own.get("callbacks") else { return };
        if depth == CALLBACKS_DEPTH_MAX {
            self.unread(callbacks.place, "callbacks of callbacks of callbacks are not read");
            return;
        }
        for (_, callback) in callbacks.entries() {
            if let Some(callback) = self.resolved(callback) {
                self.paths(&callback, Direction::Callback, depth + 1);
            }
        }
    }

    fn parameter(
        &mut self,
        one: Found<'a>,
        with_path: bool,
        parameters: &mut Vec<Parameter<'a>>,
        body: &mut Body<'a>,
    ) {
        let Some(found) = self.resolved(one) else { return };
        let (Some(name), Some(place)) = (found.node.text_of("name"), found.node.text_of("in")) else {
            self.unread(found.place, "is no parameter: it has no `name` and `in`");
            return;
        };
        if place == "body" {
            if let Some(schema) = found.get("schema") {
                self.schema(schema, body);
            }
            return;
        }
        let schema = found.get("schema").or_else(|| {
            // 3.x may give a parameter a media type instead of a schema.
            found.get("content")?.entries().next()?.1.get("schema")
        });
        let schema = schema.and_then(|schema| self.bundle.resolve(schema).ok());
        let shape = schema.map_or(found.node, |schema| schema.node);
        let describes = |node: &Node| node.text_of("description").unwrap_or("").to_owned();
        let description = if std::ptr::eq(shape, found.node) {
            describes(found.node)
        } else {
            format!("{} {}", describes(found.node), describes(shape))
        };
        let parameter = Parameter {
            name,
            place_in: match place {
                "header" => In::Header,
                "query" => In::Query,
                "path" => In::Path,
                "formData" => In::Body,
                _ => In::Other,
            },
            required: found.node.flag("required") == Some(true),
            description,
            shape: [found.node, shape],
            at: found.place,
            with_path,
            nested: false,
        };
        if parameter.place_in == In::Body {
            body.fields.push(parameter);
        } else if !parameters
            .iter()
            // The operation's own declaration stands above its path's.
            .any(|known: &Parameter<'_>| known.name == name && known.place_in == parameter.place_in)
        {
            parameters.push(parameter);
        }
    }

    fn body(&mut self, declared: Found<'a>, body: &mut Body<'a>) {
        let Some(found) = self.resolved(declared) else { return };
        for (media, content) in found.get("content").iter().flat_map(Found::entries) {
            body.media.push(media);
            if let Some(schema) = content.get("schema") {
                self.schema(schema, body);
            }
        }
    }

    /// The fields of a body's schema: its own, and one step into lists.
    fn schema(&mut self, schema: Found<'a>, body: &mut Body<'a>) {
        let mut walk = Walk::new(self.bundle);
        walk.schema(schema, false, 0);
        body.list |= walk.list;
        for field in walk.fields {
            // A body in several media types is one body.
            if !body.fields.iter().any(|known| known.name == field.name && known.nested == field.nested) {
                body.fields.push(field);
            }
        }
        for (place, why) in walk.lost {
            self.unread(place, why);
        }
    }

    fn responses(&mut self, all: &Found<'a>) -> Vec<Response<'a>> {
        let mut responses = Vec::new();
        for (status, one) in all.entries().filter(|(status, _)| !status.starts_with("x-")) {
            let Some(found) = self.resolved(one) else { continue };
            let mut walk = Walk::new(self.bundle);
            let mut media = Vec::new();
            let schemas = if self.swagger {
                Vec::from_iter(found.get("schema"))
            } else {
                let contents = found.get("content");
                let contents = contents.iter().flat_map(Found::entries);
                contents
                    .filter_map(|(name, content)| {
                        media.push(name);
                        content.get("schema")
                    })
                    .collect()
            };
            // Only successes are looked into: what they hold is what would be replayed.
            if status.starts_with('2') {
                schemas.into_iter().for_each(|schema| walk.schema(schema, false, 0));
            }
            let holds_list = walk
                .fields
                .iter()
                .filter(|field| !field.nested)
                .any(|field| field.shape[1].text_of("type") == Some("array"));
            responses.push(Response {
                status,
                description: found.node.text_of("description").unwrap_or(""),
                headers: found
                    .node
                    .get("headers")
                    .into_iter()
                    .flat_map(Node::entries)
                    .map(|(name, _)| name)
                    .collect(),
                media,
                list: walk.list || holds_list,
                fields: walk.fields.iter().filter(|field| !field.nested).map(|field| field.name).collect(),
            });
        }
        responses
    }
}

/// Collects the fields of a schema, through `allOf` and its kind, and once through lists.
struct Walk<'a> {
    bundle: &'a Bundle,
    seen: HashSet<*const Node>,
    fields: Vec<Parameter<'a>>,
    list: bool,
    lost: Vec<(Place, String)>,
}

impl<'a> Walk<'a> {
    fn new(bundle: &'a Bundle) -> Self {
        Self { bundle, seen: HashSet::new(), fields: Vec::new(), list: false, lost: Vec::new() }
    }

    fn schema(&mut self, schema: Found<'a>, nested: bool, depth: usize) {
        let place = schema.place.clone();
        let found = match self.bundle.resolve(schema) {
            Ok(found) => found,
            Err(why) => {
                self.lost.push((place, why));
                return;
            }
        };
        if depth == SCHEMA_DEPTH_MAX || self.fields.len() >= FIELDS_MAX || !self.seen.insert(found.node) {
            return;
        }
        for kind in ["allOf", "oneOf", "anyOf"] {
            for part in found.get(kind).iter().flat_map(Found::items) {
                self.schema(part, nested, depth + 1);
            }
        }
        if let Some(items) = found.get("items") {
            self.list |= !nested;
            self.schema(items, true, depth + 1);
        }
        let required: Vec<&str> =
            found.node.get("required").into_iter().flat_map(Node::items).filter_map(Node::text).collect();
        let Some(properties) = found.get("properties") else { return };
        for (name, property) in properties.entries() {
            let at = property.place.clone();
            let declared = property.node;
            // A field that leads nowhere is no field that anybody could be misled by; the reference is noted where it matters.
            let Ok(resolved) = self.bundle.resolve(property) else { continue };
            if !nested && let Some(items) = resolved.get("items") {
                self.schema(items, true, depth + 1);
            }
            let describes = |node: &'a Node| node.text_of("description").unwrap_or("");
            let description = if std::ptr::eq(declared, resolved.node) {
                describes(declared).to_owned()
            } else {
                format!("{} {}", describes(declared), describes(resolved.node))
            };
            self.fields.push(Parameter {
                name,
                place_in: In::Body,
                required: required.contains(&name),
                description,
                shape: [declared, resolved.node],
                at,
                with_path: false,
                nested,
            });
        }
    }
}
