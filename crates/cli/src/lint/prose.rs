//! From a document to its sentences: no code, no markup, each with the line it begins on.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// One sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sentence {
    pub(super) text: String,
    /// From 1.
    pub(super) line: usize,
    /// The paragraph it stands in: what is said next to it counts too.
    pub(super) paragraph: String,
    /// It stands in a block quotation: somebody else says it.
    pub(super) quoted: bool,
}

/// The sentences of a document, in their order.
pub(super) fn sentences(text: &str, html: bool) -> Vec<Sentence> {
    let blocks = if html { html_blocks(text) } else { markdown_blocks(text) };
    blocks.into_iter().flat_map(Block::sentences).collect()
}

/// Text without a break in its meaning, with the line of each of its characters.
#[derive(Default)]
struct Block {
    text: Vec<(char, usize)>,
    quoted: bool,
}

impl Block {
    fn push(&mut self, text: &str, mut line: usize) {
        for one in text.chars() {
            self.text.push((if one == '\n' { ' ' } else { one }, line));
            line += usize::from(one == '\n');
        }
    }

    fn sentences(self) -> Vec<Sentence> {
        let paragraph: String = self.text.iter().map(|(one, _)| *one).collect();
        let mut sentences = Vec::new();
        let mut start = 0;
        for place in 0..self.text.len() {
            let next = self.text.get(place + 1).map(|(one, _)| *one);
            let ends = match self.text[place].0 {
                // A point inside a number or a name ends nothing.
                '.' | '!' | '?' => next.is_none_or(char::is_whitespace),
                '。' | '！' | '？' => true,
                _ => next.is_none(),
            };
            if !ends {
                continue;
            }
            let part = &self.text[start..=place];
            start = place + 1;
            let first = part.iter().find(|(one, _)| !one.is_whitespace());
            if let Some((_, line)) = first {
                let text: String = part.iter().map(|(one, _)| *one).collect();
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let (line, paragraph, quoted) = (*line, paragraph.clone(), self.quoted);
                sentences.push(Sentence { text, line, paragraph, quoted });
            }
        }
        sentences
    }
}

fn markdown_blocks(text: &str) -> Vec<Block> {
    let starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let line_of = |at: usize| starts.partition_point(|start| *start <= at);
    let mut blocks = Vec::new();
    let mut block = Block::default();
    let (mut quotes, mut code) = (0_usize, 0_usize);
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let line = line_of(range.start);
        match event {
            Event::Start(Tag::BlockQuote(_)) => quotes += 1,
            Event::End(TagEnd::BlockQuote(_)) => quotes = quotes.saturating_sub(1),
            Event::Start(Tag::CodeBlock(_)) => code += 1,
            Event::End(TagEnd::CodeBlock) => code = code.saturating_sub(1),
            Event::Text(words) if code == 0 => block.push(&words, line),
            // Code is no prose, but it stands for a word.
            Event::Code(_) => block.push("CODE", line),
            Event::SoftBreak | Event::HardBreak => block.push("\n", line),
            Event::End(
                TagEnd::Paragraph
                | TagEnd::Heading(_)
                | TagEnd::Item
                | TagEnd::TableCell
                | TagEnd::TableRow
                | TagEnd::TableHead,
            ) => {
                block.quoted = quotes > 0;
                blocks.push(std::mem::take(&mut block));
            }
            _ => {}
        }
    }
    blocks.push(block);
    blocks
}

/// Elements whose text nobody reads as prose.
const NO_PROSE: &[&str] = &["script", "style", "pre", "code", "head"];
/// Elements that begin and end inside a sentence.
const INLINE: &[&str] = &["a", "b", "em", "i", "span", "strong", "u", "small", "sup", "sub", "br"];

fn html_blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut block = Block::default();
    let (mut rest, mut line, mut quotes) = (text, 1, 0_usize);
    while let Some(open) = rest.find('<') {
        let (words, tag) = rest.split_at(open);
        block.push(words, line);
        line += words.matches('\n').count();
        let end = tag.find('>').map_or(tag.len(), |end| end + 1);
        let (this, behind) = tag.split_at(end);
        line += this.matches('\n').count();
        rest = behind;
        let closing = this.starts_with("</");
        let name: String = this
            .trim_start_matches(['<', '/'])
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase();
        if name == "blockquote" {
            quotes = if closing { quotes.saturating_sub(1) } else { quotes + 1 };
        }
        if !closing && NO_PROSE.contains(&name.as_str()) {
            let end = rest.to_ascii_lowercase().find(&format!("</{name}")).unwrap_or(rest.len());
            line += rest[..end].matches('\n').count();
            rest = &rest[end..];
            if name == "code" {
                block.push("CODE", line);
            }
        } else if !INLINE.contains(&name.as_str()) && name != "code" {
            block.quoted = quotes > 0 || block.quoted;
            blocks.push(std::mem::take(&mut block));
            block.quoted = quotes > 0;
        }
    }
    block.push(rest, line);
    blocks.push(block);
    for block in &mut blocks {
        unescape(block);
    }
    blocks
}

/// The references that prose has.
fn unescape(block: &mut Block) {
    const REFERENCES: [(&str, char); 5] =
        [("&amp;", '&'), ("&quot;", '"'), ("&#39;", '\''), ("&nbsp;", ' '), ("&rsquo;", '\'')];
    let mut text = Vec::with_capacity(block.text.len());
    let mut place = 0;
    'next: while place < block.text.len() {
        for (reference, stands_for) in REFERENCES {
            let here = block.text[place..].iter().map(|(one, _)| *one);
            if here.take(reference.len()).eq(reference.chars()) {
                text.push((stands_for, block.text[place].1));
                place += reference.len();
                continue 'next;
            }
        }
        text.push(block.text[place]);
        place += 1;
    }
    block.text = text;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, html: bool) -> Vec<(usize, String, bool)> {
        sentences(text, html).into_iter().map(|one| (one.line, one.text, one.quoted)).collect()
    }

    #[test]
    fn markdown_is_sentences_with_lines_and_no_code() {
        let text = "# Keys\n\nOne of v1.2 is\nhere. Two `x`.\n\n```\nnever. this\n```\n\n> Said by them.\n\n| a | b. |\n|---|---|\n| c | d |\n";
        let expected = [
            (1, "Keys", false),
            (3, "One of v1.2 is here.", false),
            (4, "Two CODE.", false),
            (10, "Said by them.", true),
            (12, "a", false),
            (12, "b.", false),
            (14, "c", false),
            (14, "d", false),
        ];
        assert_eq!(told(text, false), expected.map(|(line, text, quoted)| (line, text.to_owned(), quoted)));
    }

    #[test]
    fn html_is_too() {
        let text = "<html><head><title>T.</title></head>\n<p>One <b>two</b>\nthree. Four.</p>\n<pre>no. code</pre>\n\
                    <blockquote><p>It&#39;s theirs.</p></blockquote>";
        let expected = [(2, "One two three.", false), (3, "Four.", false), (5, "It's theirs.", true)];
        assert_eq!(told(text, true), expected.map(|(line, text, quoted)| (line, text.to_owned(), quoted)));
    }

    #[test]
    fn japanese_sentences_end_without_a_blank() {
        let found = told("一つ目です。二つ目です。", false);
        assert_eq!(found.len(), 2);
    }
}
