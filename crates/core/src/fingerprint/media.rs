//! The `Content-Type` line, as far as it decides how a body is compared.

use std::borrow::Cow;

use super::transcript::Transcript;

/// A content type with its parameters, each at most once.
pub(super) struct MediaType<'a> {
    essence: &'a str,
    parameters: Vec<Parameter<'a>>,
}

impl<'a> MediaType<'a> {
    /// `None` where the line is not of the form of RFC 9110, 8.3.1, or repeats a parameter: then readers disagree.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let (essence, mut rest) = line.split_once(';').unwrap_or((line, ""));
        let essence = essence.trim_matches(BLANKS);
        let (kind, subtype) = essence.split_once('/')?;
        if !is_token(kind) || !is_token(subtype) {
            return None;
        }
        let mut parameters: Vec<Parameter<'_>> = Vec::new();
        while !rest.is_empty() {
            let parameter;
            (parameter, rest) = parameter_of(rest.trim_start_matches(BLANKS))?;
            let Some((name, value)) = parameter else { continue };
            if parameters.iter().any(|(seen, _)| seen.eq_ignore_ascii_case(name)) {
                return None;
            }
            parameters.push((name, value));
        }
        Some(Self { essence, parameters })
    }

    /// JSON in UTF-8, the only encoding that JSON has between systems.
    pub(super) fn is_json(&self) -> bool {
        let suffix = self.essence.len().checked_sub("+json".len()).and_then(|at| self.essence.get(at..));
        let json = self.essence.eq_ignore_ascii_case("application/json")
            || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"));
        json && self.parameter("charset").is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8"))
    }

    /// The boundary, where this is a form in parts.
    pub(super) fn form_boundary(&self) -> Option<&str> {
        self.essence.eq_ignore_ascii_case("multipart/form-data").then(|| self.parameter("boundary")).flatten()
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_ref())
    }

    /// Hashes the type and its parameters, all but the one that does not change what the body means.
    pub(super) fn join(&self, transcript: &mut Transcript, without: &str) {
        let kept = || self.parameters.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(without));
        transcript.bytes(self.essence.to_ascii_lowercase().as_bytes());
        transcript.count(kept().count());
        for (name, value) in kept() {
            transcript.bytes(name.to_ascii_lowercase().as_bytes());
            transcript.bytes(value.as_bytes());
        }
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_token_byte)
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

type Parameter<'a> = (&'a str, Cow<'a, str>);

/// The parameter at the start of `text`, if there is one, and what follows its semicolon. Empty ones are allowed.
fn parameter_of(text: &str) -> Option<(Option<Parameter<'_>>, &str)> {
    let (parameter, rest) = if text.is_empty() || text.starts_with(';') {
        (None, text)
    } else {
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = if rest.starts_with('"') { quoted(rest)? } else { token(rest)? };
        if !is_token(name) {
            return None;
        }
        (Some((name, value)), rest.trim_start_matches(BLANKS))
    };
    match rest.strip_prefix(';') {
        Some(next) => Some((parameter, next)),
        None => rest.is_empty().then_some((parameter, "")),
    }
}

fn token(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.bytes().position(|byte| !is_token_byte(byte)).unwrap_or(text.len());
    let (token, rest) = text.split_at_checked(end)?;
    (!token.is_empty()).then_some((Cow::Borrowed(token), rest))
}

/// A quoted string at the start of `text`, without its quotes and escapes, and what follows it.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut plain = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((Cow::Owned(plain), inner.get(at + 1..)?)),
            '\\' => plain.push(chars.next()?.1),
            other => plain.push(other),
        }
    }
    None
}
