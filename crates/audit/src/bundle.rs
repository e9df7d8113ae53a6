//! The files of one document, and what a reference in them stands for.
//!
//! Nothing is read here: [`Bundle::wanted`] names the files that are referred to and not there yet, and whoever can read files
//! gives them to [`Bundle::add`], until none is wanted.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Node;

/// A chain of references longer than this leads in a circle.
const REFERENCES_MAX: usize = 32;
/// Files of one document. Nobody splits one into more; a generator that went astray might.
pub const FILES_MAX: usize = 10_000;

/// A document and the files it is split into. The first file is the document itself.
#[derive(Debug)]
pub struct Bundle {
    files: Vec<File>,
    /// Files that could not be had, and why.
    missing: BTreeMap<String, String>,
}

#[derive(Debug)]
struct File {
    name: String,
    root: Node,
}

/// Where something stands: a file of the bundle and a JSON pointer in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// Number of the file; 0 is the document itself.
    pub file: usize,
    /// JSON pointer.
    pub pointer: String,
}

impl Place {
    /// One step further.
    pub(crate) fn step(&self, key: &str) -> Self {
        Self { file: self.file, pointer: crate::tree::step(&self.pointer, key) }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) node: &'a Node,
    pub(crate) place: Place,
}

impl<'a> Found<'a> {
    /// What stands under a key of it.
    pub(crate) fn get(&self, key: &str) -> Option<Found<'a>> {
        Some(Found { node: self.node.get(key)?, place: self.place.step(key) })
    }

    /// The entries of an object.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Found<'a>)> {
        let place = self.place.clone();
        self.node.entries().map(move |(key, node)| (key, Found { node, place: place.step(key) }))
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> impl Iterator<Item = Found<'a>> {
        let place = self.place.clone();
        self.node
            .items()
            .enumerate()
            .map(move |(index, node)| Found { node, place: place.step(&index.to_string()) })
    }
}

impl Bundle {
    /// A document by its own file.
    pub fn new(name: &str, root: Node) -> Self {
        Self { files: vec![File { name: name.to_owned(), root }], missing: BTreeMap::new() }
    }

    /// Files that are referred to, have not been added and have not been given up.
    pub fn wanted(&self) -> Vec<String> {
        let mut names = BTreeSet::new();
        for file in &self.files {
            references(&file.root, &mut |reference| {
                let path = reference.split('#').next().unwrap_or_default();
                if !path.is_empty() {
                    names.insert(relative(&file.name, path));
                }
            });
        }
        names.retain(|name| self.number(name).is_none() && !self.missing.contains_key(name));
        names.into_iter().collect()
    }

    /// Gives the bundle a file that it wanted, or says why it cannot be had.
    pub fn add(&mut self, name: &str, read: Result<Node, String>) {
        match read {
            Ok(root) if self.files.len() < FILES_MAX => {
                self.files.push(File { name: name.to_owned(), root });
            }
            Ok(_) => {
                self.missing.insert(name.to_owned(), format!("more than {FILES_MAX} files"));
            }
            Err(why) => {
                self.missing.insert(name.to_owned(), why);
            }
        }
    }

    /// The name of a file.
    pub fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |file| &file.name)
    }

    /// How many files were read.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.files.iter().position(|file| file.name == name)
    }

    pub(crate) fn root(&self) -> Found<'_> {
        // A bundle is made with its first file.
        static NOTHING: Node = Node::Null;
        let node = self.files.first().map_or(&NOTHING, |file| &file.root);
        Found { node, place: Place { file: 0, pointer: String::new() } }
    }

    /// What a value stands for, where it is a reference.
    ///
    /// # Errors
    /// What it refers to is not there, or leads in a circle.
    pub(crate) fn resolve<'a>(&'a self, found: Found<'a>) -> Result<Found<'a>, String> {
        let mut found = found;
        for _ in 0..REFERENCES_MAX {
            let Some(reference) = found.node.text_of("$ref") else { return Ok(found) };
            found = self.follow(&found.place, reference)?;
        }
        Err(format!("a chain of more than {REFERENCES_MAX} references leads in a circle"))
    }

    fn follow(&self, from: &Place, reference: &str) -> Result<Found<'_>, String> {
        let (path, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let file = if path.is_empty() {
            from.file
        } else {
            let name = relative(self.name(from.file), path);
            self.number(&name).ok_or_else(|| match self.missing.get(&name) {
                Some(why) => format!("{reference} refers to a file that cannot be had: {why}"),
                None => format!("{reference} refers to a file that was not read"),
            })?
        };
        let pointer = decoded(fragment);
        let node = self.files.get(file).and_then(|file| file.root.at(&pointer));
        let node = node.ok_or_else(|| format!("{reference} refers to nothing"))?;
        Ok(Found { node, place: Place { file, pointer } })
    }
}

/// Calls with every reference of a tree.
fn references(node: &Node, see: &mut impl FnMut(&str)) {
    match node {
        Node::Map(map) => {
            for (key, value) in map {
                match value {
                    Node::Text(reference) if &**key == "$ref" => see(reference),
                    // What an API answers with as an example refers to nothing of the document.
                    _ if matches!(&**key, "example" | "examples" | "default" | "enum") => {}
                    _ => references(value, see),
                }
            }
        }
        Node::List(list) => list.iter().for_each(|item| references(item, see)),
        _ => {}
    }
}

/// A file's name, as another refers to it. An address in the network stays as it is.
fn relative(from: &str, path: &str) -> String {
    if path.contains("://") {
        return path.to_owned();
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A fragment of a URI without its percent signs.
fn decoded(fragment: &str) -> String {
    if !fragment.contains('%') {
        return fragment.to_owned();
    }
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let byte = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(text: &str) -> Bundle {
        Bundle::new("api/openapi.yaml", Node::parse(text).unwrap())
    }

    #[test]
    fn files_are_wanted_until_they_are_there_or_given_up() {
        let mut all = bundle("a: {$ref: 'parts/a.yaml#/x'}\nb: {$ref: '../b.yaml'}\nc: {$ref: '#/a'}\n");
        assert_eq!(all.wanted(), ["api/parts/a.yaml", "b.yaml"]);
        all.add("api/parts/a.yaml", Node::parse("x: {$ref: './deep.yaml'}"));
        all.add("b.yaml", Err("it is not there".to_owned()));
        assert_eq!(all.wanted(), ["api/parts/deep.yaml"]);
        all.add("api/parts/deep.yaml", Node::parse("y: 1"));
        assert!(all.wanted().is_empty());
        let resolved = |key| all.resolve(all.root().get(key).unwrap());
        assert_eq!(resolved("c").unwrap().node.get("y"), Some(&Node::Number(1.0)));
        assert!(resolved("b").unwrap_err().contains("it is not there"));
    }

    #[test]
    fn circles_and_ends_are_told() {
        let all = bundle("a: {$ref: '#/b'}\nb: {$ref: '#/a'}\nc: {$ref: '#/nowhere'}\n");
        assert!(all.resolve(all.root().get("a").unwrap()).unwrap_err().contains("circle"));
        assert!(all.resolve(all.root().get("c").unwrap()).unwrap_err().contains("nothing"));
    }

    #[test]
    fn pointers_may_be_encoded() {
        let all = bundle("paths: {'/a b/{x}': {y: 1}}\nr: {$ref: '#/paths/~1a%20b~1%7Bx%7D'}\n");
        assert!(all.resolve(all.root().get("r").unwrap()).unwrap().node.get("y").is_some());
        assert_eq!(decoded("%zz%"), "%zz%");
    }
}
