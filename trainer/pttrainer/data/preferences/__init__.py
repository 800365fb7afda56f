"""What people prefer: pairs of a better and a worse answer, or answers labelled one by one."""
