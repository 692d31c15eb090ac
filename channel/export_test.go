package channel

// IDOf lets tests play the opener.
var IDOf = idOf
