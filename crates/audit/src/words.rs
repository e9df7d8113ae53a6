//! Names taken apart into words, and sentences searched for what they say.

/// `createOrderItem`, `create_order-item`, `HTTPServer2` as lower-case words.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let chars: Vec<char> = name.chars().collect();
    for (index, &one) in chars.iter().enumerate() {
        let ends_here = one.is_uppercase()
            && (chars
                .get(index.wrapping_sub(1))
                .is_some_and(|before| before.is_lowercase() || before.is_numeric())
                || (chars.get(index.wrapping_sub(1)).is_some_and(|before| before.is_uppercase())
                    && chars.get(index + 1).is_some_and(|next| next.is_lowercase())));
        if (ends_here || !one.is_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if one.is_alphanumeric() {
            word.extend(one.to_lowercase());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// The literal segments of a path, in order: no parameters, no fragment.
pub(crate) fn literals(path: &str) -> impl Iterator<Item = &str> {
    let path = path.split(['#', '?']).next().unwrap_or_default();
    // Google's custom verbs stand behind a colon: `/v1/{name}:cancel`.
    path.split(['/', ':']).filter(|part| !part.is_empty() && !part.contains(['{', '}']))
}

/// A name as one lower-case word: `X-Idempotency_Key` and `xIdempotencyKey` are the same.
pub(crate) fn folded(name: &str) -> String {
    name.chars().filter(|one| one.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A text as prose can be searched: lower case, one space between words.
pub(crate) fn prose(text: &str) -> String {
    let mut flat = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !flat.is_empty() {
            flat.push(' ');
        }
        flat.extend(word.chars().map(|one| if one == '’' { '\'' } else { one }).flat_map(char::to_lowercase));
    }
    flat
}

/// The first of these phrases that a text of [`prose`] holds, and where.
pub(crate) fn find<'a>(prose: &str, phrases: &[&'a str]) -> Option<(&'a str, usize)> {
    phrases.iter().filter_map(|phrase| Some((*phrase, prose.find(phrase)?))).min_by_key(|(_, at)| *at)
}

/// The sentences of a text of [`prose`].
pub(crate) fn sentences(prose: &str) -> impl Iterator<Item = &str> {
    prose.split_inclusive(['.', '!', '?'])
}

/// At most this much of a document is quoted.
const QUOTE_MAX: usize = 120;

/// What a document says around a phrase, short enough to be read.
pub(crate) fn quote(text: &str, phrase: &str) -> String {
    let flat: Vec<&str> = text.split_whitespace().collect();
    let flat = flat.join(" ");
    let start = flat.to_lowercase().find(phrase).unwrap_or(0);
    // Lower case may be longer than what it was made of; then the quotation begins at the beginning.
    let start = if flat.is_char_boundary(start.min(flat.len())) { start.min(flat.len()) } else { 0 };
    let begin = flat[..start].rfind(". ").map_or(0, |at| at + 2);
    let begin = if start - begin > QUOTE_MAX / 2 { start } else { begin };
    let mut quote: String = flat[begin..].chars().take(QUOTE_MAX).collect();
    if quote.len() < flat[begin..].len() {
        quote.truncate(quote.trim_end().len());
        quote.push('…');
    }
    quote
}

const SECONDS: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;
const UNITS: &[(&str, u64)] = &[
    ("second", SECONDS),
    ("minute", MINUTE),
    ("min", MINUTE),
    ("hour", HOUR),
    ("hr", HOUR),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

/// The first length of time that a text of [`prose`] names, in seconds: `24 hours`, `24h`, `24-hour`, `PT24H`.
pub(crate) fn duration(prose: &str) -> Option<u64> {
    if let Some(at) = prose.find("pt")
        && let Some((number, rest)) = number(&prose[at + 2..])
        && (at == 0 || !prose[..at].ends_with(char::is_alphanumeric))
    {
        let unit = match rest.chars().next() {
            Some('h') => HOUR,
            Some('m') => MINUTE,
            Some('s') => SECONDS,
            _ => return None,
        };
        return Some(number.saturating_mul(unit));
    }
    let mut rest = prose;
    while let Some(at) = rest.find(|one: char| one.is_ascii_digit()) {
        let (number, behind) = number(&rest[at..])?;
        let unit = behind.trim_start_matches([' ', '-']);
        for (name, seconds) in UNITS {
            if unit.starts_with(name) {
                return Some(number.saturating_mul(*seconds));
            }
        }
        for (letter, seconds) in [("h", HOUR), ("d", DAY), ("m", MINUTE)] {
            let end = behind.strip_prefix(letter);
            if end.is_some_and(|end| !end.starts_with(char::is_alphanumeric)) {
                return Some(number.saturating_mul(seconds));
            }
        }
        rest = behind;
    }
    None
}

fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_apart_into_words() {
        for (name, parts) in [
            ("createOrderItem", vec!["create", "order", "item"]),
            ("Create_Order-item", vec!["create", "order", "item"]),
            ("HTTPServer", vec!["http", "server"]),
            ("v2/orders", vec!["v2", "orders"]),
            ("", vec![]),
            ("ÄnderungÜben", vec!["änderung", "üben"]),
        ] {
            assert_eq!(words(name), parts, "{name}");
        }
    }

    #[test]
    fn literal_segments_are_what_is_no_parameter() {
        let parts: Vec<&str> = literals("/v1/{name}:cancel/x#Action=Y").collect();
        assert_eq!(parts, ["v1", "cancel", "x"]);
    }

    #[test]
    fn lengths_of_time_are_read() {
        for (text, seconds) in [
            ("kept for 45 days.", Some(45 * DAY)),
            ("within 24h of", Some(24 * HOUR)),
            ("a 24-hour window", Some(24 * HOUR)),
            ("pt24h", Some(24 * HOUR)),
            ("up to 255 characters, for 30 minutes", Some(30 * MINUTE)),
            ("up to 255 characters", None),
            ("http2 adopt 3", None),
            ("999999999999999999999999 hours", None),
        ] {
            assert_eq!(duration(text), seconds, "{text}");
        }
    }

    #[test]
    fn quotations_are_short_and_begin_with_their_sentence() {
        let text = format!("First. A unique  value\nfor each request. {}", "x".repeat(300));
        let quoted = quote(&text, "unique value");
        assert!(quoted.starts_with("A unique value for each request."), "{quoted}");
        assert!(quoted.chars().count() <= QUOTE_MAX + 1);
        assert_eq!(quote("İİİ key", "key").chars().count(), 7, "no panic where lower case is longer");
    }
}
