package main

import (
	"os"
	"time"

	"github.com/wirefence/wirefence/internal/runner"
)

// What `wirefence lock` and `wirefence guard` share: both run another command.

// inForeground are the options of a command that has this process's standard files.
func inForeground(grace time.Duration) runner.Options {
	return runner.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, TermGrace: grace, OnlyChild: true}
}

// exitAs ends this process with a status; err, if any, says why.
func exitAs(status int, err error) error {
	if status == 0 && err == nil {
		return nil
	}
	return &exitStatus{status, err}
}
