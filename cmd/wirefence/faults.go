package main

import (
	"errors"
	"regexp"
	"slices"
)

// fault is a setting that could not be read.
type fault struct {
	name string // the variable's
	err  error
}

// single are the errors that errors.Join has joined, or the one that is none of these.
func single(err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, each := range joined.Unwrap() {
		all = append(all, single(each)...)
	}
	return all
}

// allFaults joins the faults of settings and the errors that were found besides, each text
// once. An error that names a setting which could not be read is left out: it would be of
// the default that took the setting's place.
func allFaults(unread []fault, others ...error) error {
	var errs []error
	seen := map[string]bool{}
	add := func(err error) {
		if !seen[err.Error()] {
			errs = append(errs, err)
		}
		seen[err.Error()] = true
	}
	for _, f := range unread {
		for _, err := range single(f.err) {
			add(err)
		}
	}
	for _, other := range others {
		if other == nil {
			continue
		}
		for _, err := range single(other) {
			if !slices.ContainsFunc(unread, func(f fault) bool { return f.named(err) }) {
				add(err)
			}
		}
	}
	return errors.Join(errs...)
}

// named reports whether an error names the setting.
func (f fault) named(err error) bool {
	return f.name != "" && regexp.MustCompile(regexp.QuoteMeta(f.name)+`\b`).MatchString(err.Error())
}
