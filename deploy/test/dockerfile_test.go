package deploy

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

const dockerfile = "../Dockerfile"

func TestDockerfile(t *testing.T) {
	t.Parallel()
	for _, miss := range dockerfileMisses(read(t, dockerfile)) {
		t.Error(miss)
	}
}

func TestDockerfileBroken(t *testing.T) {
	t.Parallel()
	text := read(t, dockerfile)
	for _, c := range []struct{ old, replacement, noticed string }{
		{"USER 65532:65532\n", "", "runs as root"},
		{"USER 65532:65532\n", "USER 65532:65532\nUSER 0\n", "runs as root"},
		{"USER 65532:65532\n", "USER nobody\n", "not a number"},
		{"FROM scratch", "FROM debian:12", "not built on scratch"},
		{"CGO_ENABLED=0", "CGO_ENABLED=1", "not static"},
		{"ENTRYPOINT [\"/wirefence\"]", "ENTRYPOINT /wirefence", "needs a shell"},
		{"ENTRYPOINT [\"/wirefence\"]", "", "no ENTRYPOINT"},
		{"CMD [\"/wirefence\", \"status\", \"--ready\"]", "CMD /wirefence status --ready", "needs a shell"},
		{"HEALTHCHECK --interval=5s", "HEALTHCHECK --interval", "can't be parsed"},
		{"golang:1.26-bookworm", "golang", "golang has no tag"},
	} {
		t.Run(c.noticed, func(t *testing.T) {
			t.Parallel()
			expect(t, dockerfileMisses(broken(t, text, c.old, c.replacement)), c.noticed)
		})
	}
}

// dockerfileMisses looks at the last stage, which is what runs, and at how the
// one before it builds.
func dockerfileMisses(text string) (misses []string) {
	miss := func(text string) { misses = append(misses, text) }
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return []string{"it can't be parsed: " + err.Error()}
	}
	var base, user string
	var entrypoint, health *parser.Node
	static := false
	for _, node := range parsed.AST.Children {
		switch strings.ToUpper(node.Value) {
		case "FROM":
			base, user, entrypoint, health = node.Next.Value, "", nil, nil
			if base != "scratch" && !strings.Contains(base, ":") {
				miss("the image " + base + " has no tag")
			}
		case "RUN":
			static = static || strings.Contains(node.Original, "CGO_ENABLED=0")
		case "USER":
			user = node.Next.Value
		case "ENTRYPOINT":
			entrypoint = node
		case "HEALTHCHECK":
			health = node
		}
	}
	if base != "scratch" {
		miss("it is not built on scratch")
	}
	if !static {
		miss("the binary is not static")
	}
	// Kubernetes can verify runAsNonRoot of a numeric user only.
	id, _, _ := strings.Cut(user, ":")
	if n, err := strconv.Atoi(id); user == "" || n == 0 && err == nil {
		miss("it runs as root")
	} else if err != nil {
		miss("the user is not a number")
	}
	switch {
	case entrypoint == nil:
		miss("there is no ENTRYPOINT")
	case !entrypoint.Attributes["json"]:
		miss("ENTRYPOINT needs a shell")
	case entrypoint.Next.Value != "/wirefence":
		miss("ENTRYPOINT is " + entrypoint.Next.Value)
	}
	if health == nil {
		miss("there is no HEALTHCHECK")
	} else {
		if !health.Attributes["json"] {
			miss("HEALTHCHECK needs a shell")
		}
		for _, flag := range health.Flags {
			if !strings.Contains(flag, "=") {
				miss("it can't be parsed: " + flag)
			}
		}
		if words := words(health.Next); !slices.Equal(words, []string{"CMD", "/wirefence", "status", "--ready"}) {
			miss("HEALTHCHECK is " + strings.Join(words, " "))
		}
	}
	return misses
}

func words(node *parser.Node) (all []string) {
	for ; node != nil; node = node.Next {
		all = append(all, node.Value)
	}
	return all
}
