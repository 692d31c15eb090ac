package mcpserver

// MaxTokens is how many sessions clients can hold by tokens.
const MaxTokens = maxTokens
