package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// checkup has the doctor examine the deployment periodically, and exports the worst grade
// as a metric; a nil one examines nothing.
type checkup struct {
	interval time.Duration
	examine  func(context.Context) (json.RawMessage, error)
	log      *slog.Logger
	grades   *prometheus.GaugeVec
	at       prometheus.Gauge
	last     doctor.Grade
	work     background
}

// firstCheckup is how long the first examination waits at most: it asks the proxy itself,
// too.
const firstCheckup = 10 * time.Second

func newCheckup(cfg proxySettings, registry prometheus.Registerer, log *slog.Logger) (*checkup, error) {
	switch {
	case cfg.DoctorInterval == 0:
		return nil, nil
	case cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_DOCTOR_INTERVAL is set without WIREFENCE_DATABASE_URL, with which the doctor examines")
	}
	c := &checkup{
		interval: cfg.DoctorInterval, examine: cfg.examine, log: log,
		grades: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "wirefence_doctor_grade", Help: "1 for the worst grade that the last examination of wirefence doctor gave, 0 for the others."}, []string{"grade"}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_doctor_examined_timestamp_seconds", Help: "When the last examination ended."}),
	}
	return c, errors.Join(registry.Register(c.grades), registry.Register(c.at))
}

// run examines until end is called.
func (c *checkup) run() {
	if c == nil {
		return
	}
	c.work.start(context.Background(), func(ctx context.Context) {
		for pause := min(c.interval, firstCheckup); ; pause = c.interval {
			select {
			case <-time.After(pause):
				c.once(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
}

// once examines, and logs a grade that differs from the last one.
func (c *checkup) once(ctx context.Context) {
	grade, worst, err := c.grade(ctx)
	if ctx.Err() != nil {
		return
	}
	for _, g := range finding.Grades() {
		value := 0.0
		if g == grade {
			value = 1
		}
		c.grades.WithLabelValues(g.String()).Set(value)
	}
	c.at.SetToCurrentTime()
	if grade == c.last {
		return
	}
	c.last = grade
	level := slog.LevelInfo
	if grade > doctor.Note {
		level = slog.LevelWarn
	}
	c.log.Log(ctx, level, "the doctor gives another grade: `wirefence doctor` says why", "grade", grade.String(), "checks", worst, "error", err)
}

// grade returns the worst grade, and the checks that gave it.
func (c *checkup) grade(ctx context.Context) (grade doctor.Grade, worst []string, err error) {
	text, err := c.examine(ctx)
	if err != nil {
		return doctor.Unchecked, nil, err
	}
	var report struct {
		Grade  doctor.Grade `json:"grade"`
		Checks []struct {
			Check string       `json:"check"`
			Grade doctor.Grade `json:"grade"`
		} `json:"checks"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return doctor.Unchecked, nil, err
	}
	for _, one := range report.Checks {
		if one.Grade == report.Grade && report.Grade > doctor.OK {
			worst = append(worst, one.Check)
		}
	}
	return report.Grade, worst, nil
}

func (c *checkup) end() {
	if c != nil {
		c.work.end()
	}
}
