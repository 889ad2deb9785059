package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/timelines"
)

func TestJudgeHosts(t *testing.T) {
	t.Parallel()
	primary := func(host string, timeline uint32, here bool) standing {
		return standing{host: host, Place: timelines.Place{System: "1", Primary: true, Timeline: timeline}, here: here}
	}
	standby := standing{host: "s:1", Place: timelines.Place{System: "1"}}
	for name, c := range map[string]struct {
		all   []standing
		grade Grade
		says  []string
	}{
		"a primary and a standby":        {[]standing{primary("a:1", 3, true), standby}, OK, []string{"of 2 hosts"}},
		"one server by two names":        {[]standing{primary("a:1", 3, true), primary("b:1", 3, true)}, OK, []string{"of 2 hosts"}},
		"an old primary":                 {[]standing{primary("a:1", 1, true), primary("b:1", 2, false)}, Problem, []string{"a:1 is a primary on timeline 1, left behind by that on timeline 2 at b:1"}},
		"two old primaries":              {[]standing{primary("a:1", 1, true), primary("b:1", 3, false), primary("c:1", 2, false)}, Problem, []string{"a:1 is a primary on timeline 1", "c:1 is a primary on timeline 2"}},
		"two primaries":                  {[]standing{primary("a:1", 2, false), primary("b:1", 2, true)}, Problem, []string{"a:1 and b:1 are two primaries on timeline 2"}},
		"one that is away":               {[]standing{primary("a:1", 2, true), {host: "b:1", away: errors.New("refused")}}, Note, []string{"b:1 can't be asked"}},
		"one that doesn't tell":          {[]standing{{host: "a:1", here: true, mute: errors.New("no such function")}, standby}, Warning, []string{"a:1 is one of several hosts, and doesn't tell its timeline"}},
		"servers of different clusters":  {[]standing{primary("a:1", 1, true), {host: "b:1", Place: timelines.Place{System: "2"}}}, Problem, []string{"the hosts belong to different clusters"}},
		"standbys alone":                 {[]standing{standby, standby}, OK, []string{"of 2 hosts"}},
		"an old primary, and one absent": {[]standing{primary("a:1", 1, true), {host: "x:1", away: errors.New("refused")}, primary("b:1", 2, false)}, Problem, []string{"x:1 can't", "a:1 is a primary"}},
	} {
		found := judgeHosts(c.all)
		worst, said := OK, ""
		for _, f := range found {
			worst = max(worst, f.Grade)
			said += f.Says + "\n"
			if f.Grade > OK && f.Means == "" {
				t.Errorf("%s: it isn't said what %q means", name, f.Says)
			}
		}
		if worst != c.grade || len(found) != len(c.says) {
			t.Errorf("%s: %v\n%s", name, worst, said)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %s\nand not %s", name, said, want)
			}
		}
	}
}

func TestHostsOf(t *testing.T) {
	t.Parallel()
	one, err := ParseSession("postgres://u@a:1,b:2/x?sslmode=prefer&target_session_attrs=read-write")
	if err != nil {
		t.Fatal(err)
	}
	other, err := ParseSession("postgres://u@b:2,c:3/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, cfg := range hostsOf(one, nil, other) {
		got = append(got, address(cfg.Host, cfg.Port))
		if cfg.ValidateConnect != nil {
			t.Errorf("%s is asked for its role", cfg.Host)
		}
		for _, f := range cfg.Fallbacks {
			if f.Host != cfg.Host || f.Port != cfg.Port {
				t.Errorf("%s leads to %s", cfg.Host, f.Host)
			}
		}
		if ways := 1 + len(cfg.Fallbacks); (cfg.Host == "c") != (ways == 1) || cfg.Host == "c" && cfg.TLSConfig != nil || cfg.Host != "c" && cfg.TLSConfig == nil {
			t.Errorf("%s has %d ways", cfg.Host, ways)
		}
	}
	if strings.Join(got, " ") != "a:1 b:2 c:3" {
		t.Errorf("the hosts are %q", got)
	}
}
