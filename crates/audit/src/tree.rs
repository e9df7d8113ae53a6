//! A document as it was written: the order of its keys is kept, and nothing is taken for granted about its shape.
//!
//! JSON is read by serde_json and YAML by serde-saphyr, into the same [`Node`]; what a document says twice is noted instead of
//! being lost. Places are JSON pointers; [`crate::lines`] turns those that are printed into lines.

use std::fmt;

use indexmap::{IndexMap, map::Entry};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};

/// Keys and values in the order of the document.
pub type Map = IndexMap<Box<str>, Node>;

/// A value of a document.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    /// Nothing, `null`, `~`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A number; documents of APIs hold none that a double could not.
    Number(f64),
    /// A text.
    Text(Box<str>),
    /// A list.
    List(Vec<Node>),
    /// An object. A key that stood there twice keeps the last value, and is in [`Node::repeated`].
    Map(Map),
}

/// Under this key an object tells which of its keys were written twice. No document can hold it: it is no text of any language.
const REPEATED: &str = "\u{0}repeated";
/// Documents of APIs reach some 30 levels; what is deeper is refused before it fills the stack.
const DEPTH_MAX: usize = 200;
/// Nodes of the largest documents in use: some two million.
const NODES_MAX: usize = 20_000_000;
/// Bytes of text in one YAML document.
const TEXT_MAX: usize = 512 * 1024 * 1024;

impl Node {
    /// Reads JSON, or else YAML.
    ///
    /// # Errors
    /// What is wrong and where, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_start_matches('\u{feff}');
        // What begins like JSON and is none may still be YAML in flow style.
        if text.trim_start().starts_with(['{', '[']) {
            match serde_json::from_str(text) {
                Ok(node) => return Ok(node),
                Err(error) => {
                    return Self::yaml(text).map_err(|_| format!("is no JSON: {error}"));
                }
            }
        }
        Self::yaml(text)
    }

    fn yaml(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! {
            // `no` and `y` are names of fields to everybody who writes documents of APIs.
            strict_booleans: true,
            budget: serde_saphyr::budget! {
                max_depth: DEPTH_MAX,
                max_nodes: NODES_MAX,
                max_events: NODES_MAX * 2,
                max_total_scalar_bytes: TEXT_MAX,
            },
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let place = error.location().map(|at| format!("line {}, column {}: ", at.line(), at.column()));
            let what = error.to_string();
            let what = what.lines().next().unwrap_or_default();
            format!("{}is neither JSON nor YAML: {what}", place.unwrap_or_default())
        })
    }

    /// The value under a key of an object.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.map()?.get(key)
    }

    /// The text under a key.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// The truth value under a key.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Node::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// This as a text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// This as a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Node::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// This as an object.
    pub fn map(&self) -> Option<&Map> {
        match self {
            Node::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The entries of an object, without what this reader noted in it; nothing for anything else.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Node)> {
        let entries = self.map().into_iter().flatten();
        entries.map(|(key, node)| (&**key, node)).filter(|(key, _)| *key != REPEATED)
    }

    /// The items of a list; nothing for anything else.
    pub fn items(&self) -> impl Iterator<Item = &Node> {
        match self {
            Node::List(list) => list.iter(),
            _ => [].iter(),
        }
    }

    /// Keys of this object that the document wrote more than once.
    pub fn repeated(&self) -> impl Iterator<Item = &str> {
        self.get(REPEATED).into_iter().flat_map(Node::items).filter_map(Node::text)
    }

    /// What a JSON pointer leads to.
    pub fn at(&self, pointer: &str) -> Option<&Node> {
        if pointer.is_empty() {
            return Some(self);
        }
        let mut node = self;
        for part in pointer.strip_prefix('/')?.split('/') {
            node = match node {
                Node::Map(map) => map.get(&*unescape(part))?,
                Node::List(list) => list.get(part.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(node)
    }
}

/// `pointer`, one step further.
pub fn step(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// One part of a pointer as the key it means.
pub(crate) fn unescape(part: &str) -> std::borrow::Cow<'_, str> {
    if part.contains('~') { part.replace("~1", "/").replace("~0", "~").into() } else { part.into() }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Bool(flag))
    }

    #[allow(clippy::cast_precision_loss)] // a bound of that size is no bound
    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number as f64))
    }

    #[allow(clippy::cast_precision_loss)] // as above
    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Node, A::Error> {
        let mut map = Map::new();
        let mut repeated = Vec::new();
        while let Some(Key(key)) = object.next_key()? {
            if &*key == REPEATED {
                return Err(A::Error::custom("a key begins with a zero character"));
            }
            let value = object.next_value()?;
            match map.entry(key) {
                Entry::Occupied(mut twice) => {
                    repeated.push(Node::Text(twice.key().clone()));
                    twice.insert(value);
                }
                Entry::Vacant(free) => {
                    free.insert(value);
                }
            }
        }
        if !repeated.is_empty() {
            map.insert(REPEATED.into(), Node::List(repeated));
        }
        Ok(Node::Map(map))
    }
}

/// A key, as it is spelled: YAML writes `200:` for a status, which is a number to it.
struct Key(Box<str>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Spelled;
        impl Visitor<'_> for Spelled {
            type Value = Key;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.into()))
            }
        }
        deserializer.deserialize_str(Spelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_are_one_tree_and_keep_their_order() {
        let json = Node::parse(r#"{"b": [1, true, null], "a": {"200": "x"}}"#).unwrap();
        let yaml = Node::parse("b: [1, true, ~]\na:\n  200: x\n").unwrap();
        assert_eq!(json, yaml);
        assert_eq!(json.entries().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(json.at("/a/200").and_then(Node::text), Some("x"));
        assert_eq!(json.at("/b/1"), Some(&Node::Bool(true)));
        assert!(json.at("/b/x").is_none() && json.at("b").is_none());
    }

    #[test]
    fn what_is_written_twice_is_noted() {
        let node = Node::parse(r#"{"post": 1, "get": 2, "post": 3}"#).unwrap();
        assert_eq!(node.repeated().collect::<Vec<_>>(), ["post"]);
        assert_eq!(node.entries().count(), 2);
    }

    #[test]
    fn broken_documents_say_where() {
        for (text, said) in [("{\"a\": [1,}", "line 1 column 10"), ("a: [", "line"), ("a: 'x\nb: 1", "line")]
        {
            let error = Node::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(Node::parse(&deep).is_err());
        assert!(Node::parse(&format!("a: {deep}")).is_err());
    }

    #[test]
    fn anchors_and_merged_keys_are_read() {
        let node = Node::parse("no: {y: 1}\non: 2\n").unwrap();
        assert!(node.at("/no/y").is_some() && node.at("/on").is_some(), "names stay names");
        let node = Node::parse("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n").unwrap();
        assert_eq!(node.at("/b/x"), Some(&Node::Number(1.0)));
        assert_eq!(node.at("/c/x"), Some(&Node::Number(1.0)));
    }
}
