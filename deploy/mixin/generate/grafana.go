package main

// What Grafana 10 reads of a dashboard, as far as these have it.

type dashboard struct {
	UID           string            `json:"uid"`
	Title         string            `json:"title"`
	Description   string            `json:"description"`
	Tags          []string          `json:"tags"`
	SchemaVersion int               `json:"schemaVersion"`
	Editable      bool              `json:"editable"`
	Refresh       string            `json:"refresh"`
	Time          map[string]string `json:"time"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Links  []link  `json:"links"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"`
	Sort       int         `json:"sort,omitempty"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	KeepTime    bool     `json:"keepTime"`
	IncludeVars bool     `json:"includeVars"`
}

type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"`
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	Datasource  *datasource  `json:"datasource,omitempty"`
	GridPos     grid         `json:"gridPos"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
	Options     any          `json:"options,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
}

type grid struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type fieldConfig struct {
	Defaults struct {
		Unit     string    `json:"unit,omitempty"`
		Min      *int      `json:"min,omitempty"`
		Mappings []mapping `json:"mappings,omitempty"`
	} `json:"defaults"`
	Overrides []any `json:"overrides"`
}

type mapping struct {
	Type    string         `json:"type"`
	Options map[string]any `json:"options"`
}

type target struct {
	RefID        string      `json:"refId"`
	Datasource   *datasource `json:"datasource"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
	Instant      bool        `json:"instant,omitempty"`
	Range        bool        `json:"range,omitempty"`
	Format       string      `json:"format,omitempty"`
}

// source is the data source that a viewer has chosen.
var source = &datasource{Type: "prometheus", UID: "${datasource}"}

// newDashboard makes one with the variables that both have, and with more.
func newDashboard(uid, title, description string, more ...variable) dashboard {
	d := dashboard{
		UID: uid, Title: title, Description: description, Tags: []string{"wirefence"},
		SchemaVersion: 39, Editable: true, Refresh: "30s",
		Time:  map[string]string{"from": "now-3h", "to": "now"},
		Links: []link{{Title: "Wirefence", Type: "dashboards", Tags: []string{"wirefence"}, KeepTime: true, IncludeVars: true}},
	}
	d.Templating.List = append([]variable{
		{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
		byLabel("job", "Job", "wirefence_build_info"),
	}, more...)
	return d
}

// byLabel is a variable with the values that a label of a metric has.
func byLabel(name, label, metric string) variable {
	return variable{Name: name, Label: label, Type: "query", Query: "label_values(" + metric + ", " + name + ")", Datasource: source, Refresh: 2, Sort: 1}
}

// query is one of a panel's, with the legend of its series.
type query struct{ expr, legend string }

// row begins a row of panels under a heading.
func (d *dashboard) row(title string) {
	d.add(panel{Type: "row", Title: title}, 24, 1)
}

// graph adds figures over time, three panels abreast.
func (d *dashboard) graph(title, description, unit string, queries ...query) {
	p := shows("timeseries", title, description, unit, queries)
	for i := range p.Targets {
		p.Targets[i].Range = true
	}
	p.Options = map[string]any{
		"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	d.add(p, 8, 8)
}

// stat adds the present value of each series, six panels abreast. Values that have a
// name are shown by it.
func (d *dashboard) stat(title, description, unit string, named map[string]any, queries ...query) {
	p := shows("stat", title, description, unit, queries)
	for i := range p.Targets {
		p.Targets[i].Instant = true
	}
	if named != nil {
		p.FieldConfig.Defaults.Mappings = []mapping{{Type: "value", Options: named}}
	}
	p.Options = map[string]any{
		"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
		"textMode":      "auto", "colorMode": "none", "graphMode": "none",
	}
	d.add(p, 4, 4)
}

// table adds the present series with their labels, two panels abreast.
func (d *dashboard) table(title, description, expr string) {
	p := shows("table", title, description, "", []query{{expr: expr}})
	p.Targets[0].Instant, p.Targets[0].Format = true, "table"
	d.add(p, 12, 7)
}

func shows(kind, title, description, unit string, queries []query) panel {
	p := panel{Type: kind, Title: title, Description: description, Datasource: source, FieldConfig: &fieldConfig{Overrides: []any{}}}
	p.FieldConfig.Defaults.Unit = unit
	for i, q := range queries {
		p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Datasource: source, Expr: q.expr, LegendFormat: q.legend})
	}
	return p
}

// add places a panel to the right of the last one, or below where there is no room.
func (d *dashboard) add(p panel, width, height int) {
	p.ID = len(d.Panels) + 1
	p.GridPos = grid{W: width, H: height}
	if n := len(d.Panels); n > 0 {
		last := d.Panels[n-1].GridPos
		p.GridPos.X, p.GridPos.Y = last.X+last.W, last.Y
		if p.GridPos.X+width > 24 || last.H != height {
			p.GridPos.X, p.GridPos.Y = 0, last.Y+last.H
		}
	}
	d.Panels = append(d.Panels, p)
}
