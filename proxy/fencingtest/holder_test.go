package fencingtest

const holderVariable = "FENCINGTEST_HOLDER"

func hold() int { return 0 }
