package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// checkup has the doctor examine the deployment periodically, and exports the worst grade
// as a metric.
type checkup struct {
	cfg    proxySettings
	log    *slog.Logger
	grades *prometheus.GaugeVec
	at     prometheus.Gauge
	last   doctor.Grade
}

// firstCheckup is how long the first examination waits at most: it asks the proxy itself,
// too.
const firstCheckup = 10 * time.Second

// checkUp returns the work that examines.
func checkUp(cfg proxySettings, registry prometheus.Registerer, log *slog.Logger) (func(context.Context), error) {
	switch {
	case cfg.DoctorInterval == 0:
		return nil, nil
	case cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_DOCTOR_INTERVAL is set without WIREFENCE_DATABASE_URL, with which the doctor examines")
	}
	c := &checkup{
		cfg: cfg, log: log,
		grades: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "wirefence_doctor_grade", Help: "1 for the worst grade that the last examination of wirefence doctor gave, 0 for the others."}, []string{"grade"}),
		at: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_doctor_examined_timestamp_seconds", Help: "When the last examination ended."}),
	}
	return c.run, errors.Join(registry.Register(c.grades), registry.Register(c.at))
}

func (c *checkup) run(ctx context.Context) {
	for pause := min(c.cfg.DoctorInterval, firstCheckup); ; pause = c.cfg.DoctorInterval {
		if sleep(ctx, pause); ctx.Err() != nil {
			return
		}
		c.once(ctx)
	}
}

// once examines, and logs a grade that differs from the last one.
func (c *checkup) once(ctx context.Context) {
	results, err := c.cfg.examine(ctx)
	if ctx.Err() != nil {
		return
	}
	grade := doctor.Worst(results)
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
	var worst []string
	for _, r := range results {
		if r.Grade == grade && grade > doctor.OK {
			worst = append(worst, r.Check)
		}
	}
	level := slog.LevelInfo
	if grade > doctor.Note {
		level = slog.LevelWarn
	}
	c.log.Log(ctx, level, "the doctor gives another grade: `wirefence doctor` says why", "grade", grade.String(), "checks", worst, "error", err)
}
