//! Texts with places for what differs from one request to the next.

/// What fills the places of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Values {
    /// The key.
    pub key: String,
    /// Text that no other operation of this run has: observers look for it.
    pub nonce: String,
    /// As [`Values::nonce`], for fields that are numbers.
    pub number: u64,
    /// What the API calls the thing that was made first; the nonce where nothing was.
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Key,
    Nonce,
    Number,
    Id,
}

/// A text with `{{nonce}}`, `{{number}}` or `{{key}}` in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    /// It holds the value of an environment variable, and is not printed.
    secret: bool,
}

impl Template {
    /// Reads a text. `env` is asked for the value of `{{env.NAME}}`.
    ///
    /// # Errors
    /// The first name in braces that means nothing, or has no value.
    pub fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let (mut parts, mut rest, mut secret) = (Vec::new(), text, false);
        while let Some((before, after)) = rest.split_once("{{") {
            parts.push(Part::Text(before.to_owned()));
            let (name, tail) =
                after.split_once("}}").ok_or_else(|| "`{{` is not closed by `}}`".to_owned())?;
            parts.push(match name.trim() {
                "key" => Part::Key,
                "nonce" => Part::Nonce,
                "number" => Part::Number,
                "id" => Part::Id,
                other => {
                    let variable = other.strip_prefix("env.").ok_or_else(|| {
                        format!("`{{{{{other}}}}}` means nothing; there are {{{{nonce}}}}, {{{{number}}}}, {{{{key}}}}, {{{{id}}}} and {{{{env.NAME}}}}")
                    })?;
                    secret = true;
                    Part::Text(
                        env(variable).ok_or_else(|| format!("the environment variable {variable} is not set"))?,
                    )
                }
            });
            rest = tail;
        }
        parts.push(Part::Text(rest.to_owned()));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self { parts, secret })
    }

    /// The text with its places filled.
    #[must_use]
    pub fn fill(&self, values: &Values) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(fixed) => text += fixed,
                Part::Key => text += &values.key,
                Part::Nonce => text += &values.nonce,
                Part::Number => text += &values.number.to_string(),
                Part::Id => text += &values.id,
            }
        }
        text
    }

    /// Whether two operations get different texts.
    #[must_use]
    pub fn tells_operations_apart(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Nonce | Part::Number | Part::Id))
    }

    /// Whether it has places at all.
    #[must_use]
    pub fn has_places(&self) -> bool {
        self.parts.iter().any(|part| !matches!(part, Part::Text(_)))
    }

    /// Whether the key is in it.
    #[must_use]
    pub fn carries_key(&self) -> bool {
        self.parts.contains(&Part::Key)
    }

    /// Whether it must not be printed.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Template, String> {
        Template::read(text, &|name| (name == "TOKEN").then(|| "s3cret".to_owned()))
    }

    #[test]
    fn places_are_filled() {
        let values = Values { key: "k".into(), nonce: "n-1".into(), number: 7, id: "i".into() };
        let template = read(r#"{"a":"{{nonce}}","b":{{ number }},"c":"{{key}}","d":{}}"#).expect("valid");
        assert_eq!(template.fill(&values), r#"{"a":"n-1","b":7,"c":"k","d":{}}"#);
        assert!(template.tells_operations_apart() && template.carries_key() && !template.is_secret());
        let plain = read("Bearer {{env.TOKEN}}").expect("valid");
        assert_eq!(plain.fill(&values), "Bearer s3cret");
        assert!(!plain.tells_operations_apart() && plain.is_secret());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        assert!(read("{{nonse}}").expect_err("a typo").contains("{{nonce}}"));
        assert!(read("{{env.OTHER}}").expect_err("not set").contains("OTHER"));
        assert!(read("{{nonce").expect_err("open").contains("not closed"));
    }
}
