package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestBuild(t *testing.T) {
	t.Parallel()
	recorded := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-20T10:00:00Z"}}
	for _, c := range []struct {
		name string
		info *debug.BuildInfo
		want [3]string
	}{
		{"nothing is known", nil, [3]string{"dev", "unknown", "unknown"}},
		{"a checkout", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: recorded}, [3]string{"dev", "0123456789abcdef", "2026-11-20T10:00:00Z"}},
		{"go install of a release", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, [3]string{"v0.1.0", "unknown", "unknown"}},
	} {
		if b := buildOf(c.info); [3]string{b.Version, b.Commit, b.CommitDate} != c.want || b.Schema == 0 || b.Go != runtime.Version() {
			t.Errorf("%s: %+v", c.name, b)
		}
	}
}

// The command version works with a misspelt setting in the environment.
func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		wirefence(t, []string{"WIREFENCE_MOOD=x"}, args...).expect(t, 0).says(t, "wirefence ", ", commit ", ", schema ", runtime.Version())
	}
	wirefence(t, nil, "version", "stray").expect(t, exitUsage, "no arguments")
}
