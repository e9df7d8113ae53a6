//! Whether a licence expression can be met with the licences we accept.
//!
//! `A OR B` needs one side, `A AND B` both, parentheses group, `A WITH exception` is one name. The old
//! spelling `A/B` means `A OR B`.

/// `true` if the expression can be met; an expression that cannot be read cannot be met.
pub(super) fn satisfied(expression: &str, accepted: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { tokens: &tokens, accepted };
    reader.any() == Some(true) && reader.tokens.is_empty()
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    accepted: &'a [String],
}

impl Reader<'_> {
    fn take(&mut self, wanted: &str) -> bool {
        let taken = self.tokens.first() == Some(&wanted);
        if taken {
            self.tokens = &self.tokens[1..];
        }
        taken
    }

    fn any(&mut self) -> Option<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Some(met)
    }

    fn all(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let met = self.any()?;
            return self.take(")").then_some(met);
        }
        let (name, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        let mut name = (*name).to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.tokens.split_first()?;
            self.tokens = rest;
            name = format!("{name} WITH {exception}");
        }
        Some(self.accepted.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_judged_by_what_we_accept() {
        let accepted =
            ["MIT".to_owned(), "Unicode-3.0".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(GPL-3.0 OR Apache-2.0) AND MIT", false),
            ("MIT AND Apache-2.0 OR Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(satisfied(expression, &accepted), met, "{expression}");
        }
    }
}
