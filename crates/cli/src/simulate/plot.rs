//! Figures as SVG and PNG. The plotting library is used here and nowhere else.

use kuva::{
    RasterBackend,
    backend::svg::SvgBackend,
    plot::{
        LegendEntry, LegendShape, LinePlot, LineStyle,
        annotations::{ReferenceLine, ShadedRegion},
    },
    render::{figure::Figure as Grid, layout::Layout, plots::Plot},
};

use super::report::{Figure, Line, Panel};

/// Colours that people who see fewer of them can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
const CELL: (f64, f64) = (560.0, 300.0);
/// Pixels of a PNG for one of the SVG.
const SCALE: f32 = 2.0;

/// How a figure is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Svg,
    Png,
}

/// The bytes of a figure.
///
/// # Errors
/// What the library says.
pub(super) fn draw(figure: &Figure, format: Format) -> Result<Vec<u8>, String> {
    let rows = figure.panels.len().div_ceil(figure.columns.max(1));
    let plots: Vec<Vec<Plot>> = figure.panels.iter().map(lines).collect();
    let layouts = figure.panels.iter().zip(&plots).map(|(panel, plots)| layout(panel, plots)).collect();
    let names = figure.panels.first().map(|panel| panel.lines.as_slice()).unwrap_or_default();
    let scene = Grid::new(rows, figure.columns)
        .with_title(figure.title.as_str())
        .with_plots(plots)
        .with_layouts(layouts)
        .with_cell_size(CELL.0, CELL.1)
        .with_shared_legend_entries(names.iter().enumerate().map(legend).collect())
        .with_shared_legend_bottom()
        .render();
    match format {
        Format::Svg => Ok(SvgBackend::new().render_scene(&scene).into_bytes()),
        Format::Png => RasterBackend { scale: SCALE }.render_scene(&scene),
    }
}

fn lines(panel: &Panel) -> Vec<Plot> {
    let line = |(place, line): (usize, &Line)| {
        let plot = LinePlot::new().with_data(line.points.iter().copied()).with_color(colour(place));
        Plot::Line(plot.with_stroke_width(width(place, panel.lines.len())).with_line_style(style(place)))
    };
    panel.lines.iter().enumerate().map(line).collect()
}

fn layout(panel: &Panel, plots: &[Plot]) -> Layout {
    let mut layout =
        Layout::auto_from_plots(plots).with_title(panel.title).with_x_label(panel.x).with_y_label(panel.y);
    if panel.log_y {
        layout = layout.with_log_y();
    } else {
        layout = layout.with_y_axis_min(0.0);
    }
    let right = panel.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(0.0, f64::max);
    layout = layout.with_x_axis_max(right.ceil());
    if let Some((from, to)) = panel.shaded {
        layout = layout
            .with_shaded_region(ShadedRegion::vertical(from, to).with_color("#888888").with_opacity(0.15));
    }
    if let Some((height, label)) = panel.mark {
        layout = layout
            .with_reference_line(ReferenceLine::horizontal(height).with_color("#666666").with_label(label));
    }
    layout
}

fn legend((place, line): (usize, &Line)) -> LegendEntry {
    LegendEntry {
        label: line.name.clone(),
        color: colour(place).to_owned(),
        shape: LegendShape::Line,
        dasharray: style(place).dasharray(),
    }
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

/// Lines that lie on each other can be told apart: the earlier ones are wider, and stand out on both sides.
fn width(place: usize, lines: usize) -> f64 {
    const NARROWEST: f64 = 1.5;
    const STEP: f64 = 1.0;
    NARROWEST + STEP * lines.saturating_sub(place + 1).min(COLOURS.len() - 1) as f64
}

/// The palette once round again is dotted.
fn style(place: usize) -> LineStyle {
    if place < COLOURS.len() { LineStyle::Solid } else { LineStyle::Dotted }
}
