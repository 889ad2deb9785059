package api

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/series"
)

// ranges are the times that series are kept for, with their steps.
var ranges = map[string]time.Duration{"1h": series.Fine, "24h": series.Coarse}

// point is null where nothing is known, for JSON has no NaN.
type point float64

func (p point) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(p)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(p))
}

type seriesAnswer struct {
	Step   seconds       `json:"step_seconds"`
	End    *time.Time    `json:"end,omitempty"`
	Series []namedSeries `json:"series"`
}

// namedSeries is a series: its name, and the label that tells it apart.
type namedSeries struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Unit   series.Unit       `json:"unit"`
	Points []point           `json:"points"`
}

func (s *Server) series(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	step, limit, err := windowOf(r.URL.RawQuery)
	if err != nil {
		return err
	}
	window := series.Window{Step: step}
	if s.options.Series != nil {
		window = s.options.Series.Read(step, limit)
	}
	answer := seriesAnswer{seconds(step), utc(window.End), make([]namedSeries, len(window.Series))}
	for i, one := range window.Series {
		named := namedSeries{Name: one.Name, Unit: one.Unit, Points: make([]point, len(one.Points))}
		if one.Label != "" {
			named.Labels = map[string]string{one.Label: one.Value}
		}
		for j, p := range one.Points {
			named.Points[j] = point(p)
		}
		answer.Series[i] = named
	}
	return write(w, answer)
}

// windowOf reads the parameters of the series.
func windowOf(query string) (step time.Duration, limit int, err error) {
	given, err := parameters(query, "range", "limit")
	if err != nil {
		return 0, 0, err
	}
	step, limit = series.Fine, math.MaxInt
	if text, ok := given["range"]; ok {
		if step, ok = ranges[text]; !ok {
			return 0, 0, badRequest("the parameter range must be 1h or 24h")
		}
	}
	if text, ok := given["limit"]; ok {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPoints {
			return 0, 0, badRequest("the parameter limit must be from 1 to %d", maxPoints)
		}
	}
	return step, limit, nil
}

// maxPoints is how many points a series has at most.
const maxPoints = int(24 * time.Hour / series.Coarse)
