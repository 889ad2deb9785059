package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// watch tells whether the machine does other work while something is measured.
type watch struct {
	before bool
	began  jiffies
}

// jiffies are what /proc/stat counts of all cores together.
type jiffies struct{ working, stolen, all int64 }

const (
	lookTime = 200 * time.Millisecond
	// tolerated is the fraction of all cores' time that others may have: between runs
	// servers tidy up a little.
	tolerated = 0.1
)

// startWatch looks for a moment in which nothing is measured.
func startWatch(ctx context.Context) (w watch, err error) {
	first, err := readJiffies()
	if err != nil {
		return w, err
	}
	select {
	case <-time.After(lookTime):
	case <-ctx.Done():
		return w, ctx.Err()
	}
	if w.began, err = readJiffies(); err != nil {
		return w, err
	}
	w.before = w.began.fraction(first, jiffies.used) > tolerated
	return w, nil
}

// busy says whether others worked before, or the host has taken time away since.
func (w watch) busy() (bool, error) {
	now, err := readJiffies()
	return w.before || now.fraction(w.began, func(j jiffies) int64 { return j.stolen }) > tolerated, err
}

func (j jiffies) used() int64 { return j.working + j.stolen }

// fraction is which part of the time since an earlier look went to something.
func (j jiffies) fraction(since jiffies, of func(jiffies) int64) float64 {
	if j.all == since.all {
		return 0
	}
	return float64(of(j)-of(since)) / float64(j.all-since.all)
}

func readJiffies() (jiffies, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return jiffies{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseJiffies(line)
}

// parseJiffies reads the first line of proc_stat(5): user, nice, system, idle, iowait,
// irq, softirq, steal.
func parseJiffies(line string) (j jiffies, err error) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return j, fmt.Errorf("unexpected line of /proc/stat: %q", line)
	}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return j, err
		}
		j.all += n
		switch i {
		case 3, 4: // idle, iowait
		case 7:
			j.stolen = n
		default:
			j.working += n
		}
	}
	return j, nil
}
