//! Just enough reading of Rust source for a lint: code without comments, and the string literals.

/// The part of a line before its `//` comment. Slashes inside a string (`"http://x"`) do not start one.
pub(super) fn code(line: &str) -> &str {
    let bytes = line.as_bytes();
    let (mut quoted, mut index) = (false, 0);
    while index < bytes.len() {
        match bytes[index] {
            b'\\' if quoted => index += 1,
            // A quote as a character literal is not the start of a string.
            b'"' if !line[..index].ends_with('\'') => quoted = !quoted,
            b'/' if !quoted && bytes.get(index + 1) == Some(&b'/') => return &line[..index],
            _ => {}
        }
        index += 1;
    }
    line
}

/// The string literals of a line, without escapes being undone.
pub(super) fn literals(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code(line);
    while let Some((_, after)) = rest.split_once('"') {
        let Some((literal, next)) = after.split_once('"') else { break };
        found.push(literal);
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_strings_stay() {
        assert_eq!(code(r#"let a = "http://x"; // tokio"#), r#"let a = "http://x"; "#);
        assert_eq!(code("/// SystemTime"), "");
        assert_eq!(code(r#"match c { '"' => 1 } // x"#), r#"match c { '"' => 1 } "#);
        assert_eq!(code(r#"let a = "a\"b // c";"#), r#"let a = "a\"b // c";"#);
    }

    #[test]
    fn literals_are_found_outside_comments() {
        assert_eq!(literals(r#"("a_b", "c") // "d""#), ["a_b", "c"]);
        assert!(literals("nothing").is_empty());
    }
}
