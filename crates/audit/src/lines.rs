//! Which line of a file a JSON pointer means.
//!
//! Documents are read without places, since most of what they hold is never pointed at. When something is, the file is read once
//! more, as a stream of events, until every pointer has its line. JSON is read as the YAML it is; where that fails, the rest of the
//! pointers have no line, which costs a report a number and nothing else.

use std::collections::HashMap;

use granit_parser::{Event, Parser};

use crate::tree::step;

/// Levels of a document that are followed.
const DEPTH_MAX: usize = 200;

/// A container that is open.
struct Open {
    pointer: String,
    /// Number of the next item, of a list.
    index: Option<usize>,
    /// The key that was read, of an object.
    key: Option<String>,
    /// Whether any wanted pointer begins with this one.
    wanted: bool,
}

/// The line (from 1) of each of these pointers that can be found.
pub fn lines(text: &str, pointers: &[&str]) -> HashMap<String, usize> {
    let mut wanted: HashMap<&str, bool> = HashMap::new();
    for pointer in pointers {
        // Every prefix leads to it; only the last is asked for.
        for (at, _) in pointer.match_indices('/') {
            wanted.entry(&pointer[..at]).or_insert(false);
        }
        wanted.insert(pointer, true);
    }
    let asked = wanted.values().filter(|asked| **asked).count();
    let mut found = HashMap::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        let line = span.start.line();
        match event {
            Event::Scalar(value, ..) => {
                if let Some(last) = open.last_mut()
                    && last.index.is_none()
                    && last.key.is_none()
                {
                    // A key points at itself: that is the line a reader looks for.
                    last.key = Some(if last.wanted { value.into_owned() } else { String::new() });
                    if last.wanted {
                        note(
                            &step(&last.pointer, last.key.as_deref().unwrap_or_default()),
                            line,
                            &wanted,
                            &mut found,
                        );
                    }
                } else {
                    let pointer = next(&mut open);
                    note(&pointer, line, &wanted, &mut found);
                }
            }
            Event::Alias(_) => {
                next(&mut open);
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                let list = matches!(event, Event::SequenceStart(..));
                let parent = open.last().is_none_or(|last| last.wanted);
                let pointer = next(&mut open);
                note(&pointer, line, &wanted, &mut found);
                if open.len() >= DEPTH_MAX {
                    break;
                }
                let wanted = parent && wanted.contains_key(&*pointer);
                open.push(Open { pointer, index: list.then_some(0), key: None, wanted });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
            }
            Event::DocumentEnd => break,
            _ => {}
        }
        if found.len() == asked {
            break;
        }
    }
    found
}

fn note(pointer: &str, line: usize, wanted: &HashMap<&str, bool>, found: &mut HashMap<String, usize>) {
    if wanted.get(pointer) == Some(&true) {
        found.entry(pointer.to_owned()).or_insert(line);
    }
}

/// The pointer of the value that begins here; its container goes on to the next.
fn next(open: &mut [Open]) -> String {
    let Some(last) = open.last_mut() else { return String::new() };
    let key = match &mut last.index {
        Some(index) => {
            *index += 1;
            (*index - 1).to_string()
        }
        None => last.key.take().unwrap_or_default(),
    };
    if last.wanted { step(&last.pointer, &key) } else { "\u{0}".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_have_the_lines_of_their_keys() {
        let yaml = "a: 1\npaths:\n  /x/{y}:\n    post:\n      tags: [one,\n        two]\n";
        let json = "{\"a\": 1,\n\"paths\": {\n\"/x/{y}\": {\n\"post\": {\n\"tags\": [\"one\",\n\"two\"]}}}}";
        for text in [yaml, json] {
            let pointers = ["/paths/~1x~1{y}/post", "/paths/~1x~1{y}/post/tags/1", "/nowhere"];
            let lines = lines(text, &pointers);
            assert_eq!((lines.get(pointers[0]), lines.get(pointers[1])), (Some(&4), Some(&6)), "{text}");
            assert!(!lines.contains_key("/nowhere"));
        }
    }

    #[test]
    fn the_document_itself_has_a_line() {
        assert_eq!(lines("\n\na: 1\n", &[""]).get(""), Some(&3));
    }

    #[test]
    fn broken_text_has_the_lines_before_the_break() {
        let lines = lines("a: 1\nb: [\n", &["/a", "/b", "/c"]);
        assert_eq!(lines.get("/a"), Some(&1));
        assert!(!lines.contains_key("/c"));
    }
}
