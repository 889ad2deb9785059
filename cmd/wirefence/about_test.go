package main

import (
	"testing"
)

func TestPasswordsAreLeftOut(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "host=db password=geheim": "(set)", "postgres://db/app": "postgres://db/app",
		"postgres://issuer:geheim@db.internal:5432,db2/app?sslmode=require&password=geheim": "postgres://issuer@db.internal:5432,db2/app?sslmode=require",
		"redis://:geheim@redis:6379/0":                    "redis://@redis:6379/0",
		"redis-sentinel://u:ge@heim@s1,s2/0?PASSWORD=x":   "redis-sentinel://u@s1,s2/0",
		"postgres://u:ge/heim@db/app":                     "(set)",
		"postgres://u:ge?heim@db/app":                     "(set)",
		"postgres:///app?host=/tmp&sslpassword=geheim":    "postgres:///app?host=%2Ftmp",
		"postgres://u@db/app?sentinel_secret=x&options=a": "postgres://u@db/app?options=a",
	} {
		if got := withoutPassword(given); got != want {
			t.Errorf("%s is told as %s, want %s", given, got, want)
		}
	}
}
